// parallel_algorithms.cu: NVIDIA's own device code (Thrust, CUB, cooperative groups, libcu++) gives
// what the C++ standard library gives.
#include <algorithm>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cub/cub.cuh>
#include <cuda/atomic>
#include <functional>
#include <numeric>
#include <random>
#include <thrust/binary_search.h>
#include <thrust/count.h>
#include <thrust/device_vector.h>
#include <thrust/extrema.h>
#include <thrust/functional.h>
#include <thrust/inner_product.h>
#include <thrust/merge.h>
#include <thrust/partition.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/set_operations.h>
#include <thrust/sort.h>
#include <thrust/unique.h>

#include "behaviour.h"

namespace cg = cooperative_groups;

template <typename T>
using Device = thrust::device_vector<T>;

struct Odd {
    __host__ __device__ bool operator()(int x) const { return x & 1; }
};

template <typename T>
static Device<T> on(const std::vector<T> &values)
{
    return {values.begin(), values.end()};
}

template <typename T>
static void expect_equal(const Device<T> &got, const std::vector<T> &wanted, const char *what)
{
    std::vector<T> values(got.size());
    thrust::copy(got.begin(), got.end(), values.begin());
    EXPECT(values == wanted, "%s", what);
}

template <typename T>
static T *raw(Device<T> &values)
{
    return thrust::raw_pointer_cast(values.data());
}

// CUB's two calls: how much room, and do it.
template <typename Call>
static void with_room(Call call)
{
    size_t bytes = 0;
    CUDA_CHECK(call(nullptr, bytes));
    Device<char> room(bytes);
    CUDA_CHECK(call(raw(room), bytes));
}

static void sorts(const std::vector<int> &x, const std::vector<int> &keys)
{
    auto wanted = x;
    std::sort(wanted.begin(), wanted.end());
    auto radix = on(x);
    thrust::sort(radix.begin(), radix.end());
    expect_equal(radix, wanted, "sort of int");

    std::vector<double> wide(x.begin(), x.end());
    for (auto &each : wide)
        each = each / 7 + 1e5;
    auto wider = on(wide);
    thrust::sort(wider.begin(), wider.end());
    std::sort(wide.begin(), wide.end());
    expect_equal(wider, wide, "sort of double");

    std::vector<int> order(x.size());
    std::iota(order.begin(), order.end(), 0);
    auto values = on(order), by = on(keys);
    thrust::stable_sort_by_key(by.begin(), by.end(), values.begin(), thrust::greater<int>());
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return keys[a] > keys[b]; });
    expect_equal(values, order, "merge sort by key");
}

static void reductions(const std::vector<int> &x)
{
    auto d = on(x);
    EXPECT(thrust::reduce(d.begin(), d.end()) == std::accumulate(x.begin(), x.end(), 0), "sum");
    EXPECT(*thrust::max_element(d.begin(), d.end()) == *std::max_element(x.begin(), x.end()),
           "greatest");
    EXPECT(thrust::count_if(d.begin(), d.end(), Odd()) == std::count_if(x.begin(), x.end(), Odd()),
           "how many are odd");
    EXPECT(thrust::inner_product(d.begin(), d.end(), d.begin(), 0ll) ==
               std::inner_product(x.begin(), x.end(), x.begin(), 0ll),
           "inner product");
    auto sums = x;
    std::partial_sum(x.begin(), x.end(), sums.begin());
    thrust::inclusive_scan(d.begin(), d.end(), d.begin());
    expect_equal(d, sums, "running sums");
}

static void selections(const std::vector<int> &x, std::vector<int> keys)
{
    auto wanted = x;
    auto d = on(x), odd = d;
    wanted.erase(std::remove_if(wanted.begin(), wanted.end(), std::not_fn(Odd())), wanted.end());
    odd.erase(thrust::copy_if(d.begin(), d.end(), odd.begin(), Odd()), odd.end());
    expect_equal(odd, wanted, "the odd ones");

    wanted = x;
    std::stable_partition(wanted.begin(), wanted.end(), Odd());
    thrust::stable_partition(d.begin(), d.end(), Odd());
    expect_equal(d, wanted, "the odd ones first");

    std::sort(keys.begin(), keys.end());
    auto by = on(keys), once = by, sums = on(x);
    d = on(x);
    auto ends = thrust::reduce_by_key(by.begin(), by.end(), d.begin(), once.begin(), sums.begin());
    once.erase(ends.first, once.end());
    sums.erase(ends.second, sums.end());
    std::vector<int> totals;
    for (size_t i = 0; i < x.size(); i++)
        if (i && keys[i] == keys[i - 1])
            totals.back() += x[i];
        else
            totals.push_back(x[i]);
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    by.erase(thrust::unique(by.begin(), by.end()), by.end());
    expect_equal(by, keys, "each key once");
    expect_equal(once, keys, "keys of sums");
    expect_equal(sums, totals, "sums by key");
}

static void histograms(const std::vector<int> &keys, int bins)
{
    std::vector<int> wanted(bins);
    for (int key : keys)
        wanted[key]++;
    Device<int> counts(bins), d = on(keys);
    with_room([&](void *room, size_t &bytes) {
        return cub::DeviceHistogram::HistogramEven(room, bytes, raw(d), raw(counts), bins + 1, 0,
                                                   bins, int(keys.size()));
    });
    expect_equal(counts, wanted, "histogram");

    int n = int(keys.size());
    Device<float> halves(n, 0.5f), sums(3);
    auto offsets = on(std::vector<int>{0, 1000, 1000, n});
    with_room([&](void *room, size_t &bytes) {
        return cub::DeviceSegmentedReduce::Sum(room, bytes, raw(halves), raw(sums), 3, raw(offsets),
                                               raw(offsets) + 1);
    });
    expect_equal(sums, {500.f, 0.f, 0.5f * (n - 1000)}, "sums of segments");
}

static void ordered_sets()
{
    std::vector<int> twos(1000), threes(700), wanted;
    for (int i = 0; i < 1000; i++)
        twos[i] = 2 * i;
    for (int i = 0; i < 700; i++)
        threes[i] = 3 * i;
    auto a = on(twos), b = on(threes);
    Device<int> out(1700);
    std::set_intersection(twos.begin(), twos.end(), threes.begin(), threes.end(),
                          std::back_inserter(wanted));
    auto end = thrust::set_intersection(a.begin(), a.end(), b.begin(), b.end(), out.begin());
    expect_equal(Device<int>(out.begin(), end), wanted, "intersection");
    wanted.clear();
    std::merge(twos.begin(), twos.end(), threes.begin(), threes.end(), std::back_inserter(wanted));
    thrust::merge(a.begin(), a.end(), b.begin(), b.end(), out.begin());
    expect_equal(out, wanted, "merge");
    auto sought = on(std::vector<int>{5, 100, 4000});
    Device<int> places(3);
    thrust::lower_bound(a.begin(), a.end(), sought.begin(), sought.end(), places.begin());
    expect_equal(places, {3, 50, 1000}, "binary search");
}

__global__ void group_sums(int4 *out)
{
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    auto tile = cg::tiled_partition<8>(block);
    int v = threadIdx.x, third = 0;
    if (v % 3 == 0)
        third = cg::reduce(cg::coalesced_threads(), v, cg::greater<int>());
    out[v] = make_int4(cg::reduce(tile, v, cg::plus<int>()), cg::exclusive_scan(tile, v), third,
                       cg::reduce(cg::labeled_partition(warp, v % 5), 1, cg::plus<int>()));
}

static void groups()
{
    Device<int4> out(64);
    group_sums<<<1, 64>>>(raw(out));
    for (int v = 0; v < 64; v++) {
        int4 got = out[v], want = {0, 0, 0, 0};
        for (int i = v / 8 * 8; i < v / 8 * 8 + 8; i++) {
            want.x += i;
            want.y += i < v ? i : 0;
        }
        for (int i = v / 32 * 32; i < v / 32 * 32 + 32; i++) {
            want.z = i % 3 || v % 3 ? want.z : i;
            want.w += i % 5 == v % 5;
        }
        EXPECT(got.x == want.x && got.y == want.y && got.z == want.z && got.w == want.w,
               "thread %d: %d %d %d %d", v, got.x, got.y, got.z, got.w);
    }
}

__global__ void count(unsigned *sum, unsigned long long *greatest, float *ones, unsigned n)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    cuda::atomic_ref<unsigned, cuda::thread_scope_device>(*sum).fetch_add(
        i, cuda::memory_order_relaxed);
    cuda::atomic_ref<unsigned long long, cuda::thread_scope_device>(*greatest).fetch_max(
        3ull * i, cuda::memory_order_acq_rel);
    cuda::atomic_ref<float, cuda::thread_scope_system>(*ones).fetch_add(1.0f);
}

static void atomics()
{
    Device<unsigned> sum(1);
    Device<unsigned long long> greatest(1);
    Device<float> ones(1);
    count<<<10, 100>>>(raw(sum), raw(greatest), raw(ones), 900);
    EXPECT(sum[0] == 900u * 899 / 2 && greatest[0] == 3 * 899 && ones[0] == 900, "%u %llu %g",
           unsigned(sum[0]), static_cast<unsigned long long>(greatest[0]), float(ones[0]));
}

int main(int argc, char **argv)
{
    start();
    std::mt19937 random(7);
    std::vector<int> x(30000), keys(x.size());
    for (auto &each : x)
        each = int(random() % 1000) - 500;
    for (auto &each : keys)
        each = random() % 50;
    for (int half = 0; half < 2; half++) {
        sorts(x, keys);
        reductions(x);
        selections(x, keys);
        histograms(keys, 50);
        ordered_sets();
        groups();
        atomics();
        if (half == 0)
            interlude(argc, argv);
    }
    return 0;
}
