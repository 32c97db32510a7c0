// Device functions that call themselves and each other, and stack memory, for test_calls.py.
#include <new>

#define EXPORT extern "C" __global__ void

__device__ __noinline__ int fib(int n)
{
    return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

__device__ __noinline__ void sort(int *a, int low, int high)
{
    if (low >= high)
        return;
    int pivot = a[(low + high) / 2], i = low, j = high;
    while (i <= j) {
        while (a[i] < pivot)
            i++;
        while (a[j] > pivot)
            j--;
        if (i <= j) {
            int t = a[i];
            a[i++] = a[j];
            a[j--] = t;
        }
    }
    sort(a, low, j);
    sort(a, i, high);
}

__device__ __noinline__ bool is_odd(unsigned n);

__device__ __noinline__ bool is_even(unsigned n)
{
    return n == 0 ? true : is_odd(n - 1);
}

__device__ __noinline__ bool is_odd(unsigned n)
{
    return n == 0 ? false : is_even(n - 1);
}

struct State {
    int number;
    double sum;
    char letters[5];
};

// An array of each activation is read by deeper ones; a structure goes down and comes back.
__device__ __noinline__ State descend(State state, int depth, const int *outer)
{
    int mine[4] = {depth, state.number, outer[0], 0};
    if (depth == 0) {
        state.sum += outer[0];
        return state;
    }
    State next = state;
    next.number += depth;
    next.letters[depth % 5]++;
    State result = descend(next, depth - 1, depth % 2 ? mine : outer);
    result.sum += mine[0] * 0.5 + next.number + mine[2];
    result.letters[0] += (char)mine[1];
    return result;
}

// With a shuffle in each activation: the lanes of a warp go down together.
__device__ __noinline__ int rotate(int value, int depth)
{
    if (depth == 0)
        return value;
    int other = __shfl_sync(~0u, value, (threadIdx.x + 1) % 32);
    return rotate(other, depth - 1) + value;
}

struct Shape {
    __device__ virtual int area(int depth) const { return depth; }
};

struct Box : Shape {
    const Shape *inner;
    __device__ int area(int depth) const override { return 10 + inner->area(depth + 1); }
};

EXPORT recursion(int *numbers, int *data, State *states)
{
    int me = threadIdx.x, base[2] = {me * 100, 7};
    numbers[me] = fib(me % 16) + 100000 * is_even(me) + 1000000 * is_odd(me);
    sort(data + me * 16, 0, 15);
    State state = {me, 0.25, {1, 2, 3, 4, 5}};
    states[me] = descend(state, me % 9, base);
}

EXPORT rotations(int *values)
{
    values[threadIdx.x] = rotate(values[threadIdx.x], 5);
}

EXPORT virtuals(int *values)
{
    Shape last;
    Box inner, outer;
    inner.inner = &last;
    outer.inner = threadIdx.x % 2 ? (const Shape *)&inner : &last;
    values[threadIdx.x] = outer.area(threadIdx.x);
}

__device__ __noinline__ int forever(int n)
{
    return forever(n + 1) + threadIdx.x;
}

EXPORT runaway(int *values)
{
    values[0] = forever(values[0]);
}

__device__ __noinline__ int backwards(int n)
{
    int *taken = (int *)__builtin_alloca(n * sizeof(int)), sum = 0;
    for (int i = 0; i < n; i++)
        taken[i] = i * n;
    for (int i = n - 1; i >= 0; i--)
        sum = 3 * sum + taken[i];
    return sum;
}

EXPORT stack_memory(int *values, int count)
{
    int sum = 0;
    for (int i = 0; i < 1000; i++)
        sum += backwards((threadIdx.x + i) % count);
    values[threadIdx.x] = sum;
}

EXPORT too_much(int *values, int count)
{
    values[threadIdx.x] = backwards(count);
}

// The table of a class with a virtual destructor holds the one that `delete` calls, which frees; so
// does what has no arguments and no result look to a call through the table.
struct Counter {
    int *at;
    __device__ Counter(int *where) : at(where) {}
    __device__ virtual ~Counter() { *at += 100; }
    __device__ virtual void count() { ++*at; }
};

struct Doubler : Counter {
    using Counter::Counter;
    __device__ void count() override { *at += 2; }
};

__device__ Counter *make(int *where, void *one, void *two)
{
    return threadIdx.x % 2 ? new (two) Doubler(where) : new (one) Counter(where);
}

EXPORT count(int *values)
{
    alignas(16) char one[sizeof(Counter)], two[sizeof(Doubler)];
    Counter *counter = make(values + threadIdx.x, one, two);
    counter->count();
    counter->~Counter();
}

EXPORT frees(int *values)
{
    int *at = values + threadIdx.x;
    Counter *counter = threadIdx.x % 2 ? new Doubler(at) : new Counter(at);
    counter->count();
    delete counter;
}
