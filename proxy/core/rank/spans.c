/* spans.c: arithmetic with spans (spans.h): one function for each step that has operands; enum
 * proxy_step_op in proxy.h defines their results.
 *
 * Rules: a span is never too small; a result that does not fit becomes anything, never something
 * wrong. Sums and products need no wrapping. Operations that read the bits of a register (compare,
 * divide, extend) first move the span to the range of numbers of that width, signed or not
 * (as_bits).
 */
#include "rank/spans.h"

#include "proxy.h"

static const struct span empty = {.low = 1, .high = 0};

struct span span_anything(uint32_t bits)
{
	if (bits >= 64)
		return (struct span){.low = INT64_MIN, .high = INT64_MAX};
	int64_t half = 1ll << (bits - 1);
	return (struct span){.low = -half, .high = half - 1};
}

/* High minus low; at most UINT64_MAX. */
static uint64_t width(struct span r) { return (uint64_t)r.high - (uint64_t)r.low; }

static bool is_anything(struct span r, uint32_t bits)
{
	return width(r) >= (bits >= 64 ? UINT64_MAX : (1ull << bits) - 1);
}

static uint32_t least_of(uint32_t a, uint32_t b) { return a < b ? a : b; }
static int64_t low_of(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t high_of(int64_t a, int64_t b) { return a > b ? a : b; }

static uint32_t zeros_of(struct span r)
{
	if (r.low != r.high)
		return r.zeros;
	return r.low ? least_of((uint32_t)__builtin_ctzll((uint64_t)r.low), SPAN_ZEROS_MAX)
		     : SPAN_ZEROS_MAX;
}

static struct span span_from(int64_t low, int64_t high, uint32_t base, uint32_t zeros,
			     uint32_t bits)
{
	struct span r = {low, high, base, least_of(zeros, SPAN_ZEROS_MAX)};
	return is_anything(r, bits) || (base && bits < 64) ? span_anything(bits) : r;
}

/* Moves the span to the range of numbers of this width. Unsigned 64-bit numbers must be valid
 * signed ones, too: otherwise `ok` is false, as it is for addresses as numbers of fewer bits. */
static struct span as_bits(struct span r, uint32_t bits, uint32_t sign, bool *ok)
{
	*ok = true;
	if (bits >= 64) {
		*ok = sign != PROXY_UNSIGNED || r.base || r.low >= 0;
		return r;
	}
	int64_t lowest = sign == PROXY_UNSIGNED ? 0 : -(1ll << (bits - 1)), a, b;
	if (!r.base && !__builtin_sub_overflow(r.low, lowest, &a) &&
	    !__builtin_sub_overflow(r.high, lowest, &b) && a >> bits == b >> bits) {
		if (a >> bits)
			r.zeros = least_of(zeros_of(r), bits);
		r.low -= (a >> bits) * (1ll << bits);
		r.high -= (a >> bits) * (1ll << bits);
		return r;
	}
	*ok = !r.base;
	return (struct span){lowest, lowest + (1ll << bits) - 1, 0,
			     r.base ? 0 : least_of(zeros_of(r), bits)};
}

static struct span as_number(struct span r, uint32_t bits, uint32_t sign)
{
	bool ok;
	struct span found = as_bits(r, bits, sign, &ok);
	return ok ? found : span_anything(bits);
}

/* ---- arithmetic ---- */

static struct span add(struct span a, struct span b, uint32_t bits)
{
	int64_t low, high;
	if ((a.base && b.base) || __builtin_add_overflow(a.low, b.low, &low) ||
	    __builtin_add_overflow(a.high, b.high, &high))
		return span_anything(bits);
	return span_from(low, high, a.base | b.base, least_of(zeros_of(a), zeros_of(b)), bits);
}

static struct span subtract(struct span a, struct span b, uint32_t bits)
{
	int64_t low, high;
	if ((b.base && a.base != b.base) || __builtin_sub_overflow(a.low, b.high, &low) ||
	    __builtin_sub_overflow(a.high, b.low, &high))
		return span_anything(bits);
	uint32_t zeros = least_of(zeros_of(a), zeros_of(b));
	return span_from(low, high, b.base ? 0 : a.base, zeros, bits);
}

static struct span multiply(struct span a, struct span b, uint32_t bits)
{
	int64_t at[4];
	uint32_t zeros = zeros_of(a) + zeros_of(b);
	if (a.base || b.base)
		return span_anything(bits);
	if (a.low >= 0 && b.low >= 0) {
		if (__builtin_mul_overflow(a.high, b.high, &at[3]))
			return span_anything(bits);
		return span_from(a.low * b.low, at[3], 0, zeros, bits);
	}
	if (__builtin_mul_overflow(a.low, b.low, &at[0]) ||
	    __builtin_mul_overflow(a.low, b.high, &at[1]) ||
	    __builtin_mul_overflow(a.high, b.low, &at[2]) ||
	    __builtin_mul_overflow(a.high, b.high, &at[3]))
		return span_anything(bits);
	return span_from(low_of(low_of(at[0], at[1]), low_of(at[2], at[3])),
			 high_of(high_of(at[0], at[1]), high_of(at[2], at[3])), 0, zeros, bits);
}

static struct span shift_up(struct span a, struct span by, uint32_t bits)
{
	if (by.base || by.low != by.high || by.low < 0 || by.low >= bits ||
	    by.low >= SPAN_ZEROS_MAX)
		return span_anything(bits);
	int64_t factor = 1ll << by.low;
	return multiply(a, (struct span){.low = factor, .high = factor}, bits);
}

static struct span shift_down(struct span a, struct span by, uint32_t bits, uint32_t sign)
{
	bool ok;
	a = as_bits(a, bits, sign == PROXY_SIGNED ? PROXY_SIGNED : PROXY_UNSIGNED, &ok);
	if (!ok || a.base || by.base || by.low < 0 || by.low > by.high)
		return span_anything(bits);
	int64_t most = by.high > 63 ? 63 : by.high, fewest = by.low > 63 ? 63 : by.low;
	uint32_t zeros = zeros_of(a);
	zeros = most == fewest && zeros > (uint64_t)most ? zeros - (uint32_t)most : 0;
	return span_from(a.low >> (a.low < 0 ? fewest : most),
			 a.high >> (a.high < 0 ? most : fewest), 0, zeros, bits);
}

/* Sets all bits below the highest one of a number that is not negative. */
static int64_t fill_below(int64_t number)
{
	return number ? (int64_t)(UINT64_MAX >> __builtin_clzll((uint64_t)number)) : 0;
}

static struct span bits_and(struct span a, struct span b, uint32_t bits)
{
	a = as_number(a, bits, PROXY_SIGNED);
	b = as_number(b, bits, PROXY_SIGNED);
	if (a.base || b.base)
		return span_anything(bits);
	if (a.low == a.high) {
		struct span other = a;
		a = b;
		b = other;
	}
	uint32_t zeros = zeros_of(a) > zeros_of(b) ? zeros_of(a) : zeros_of(b);
	if (b.low == b.high) {
		int64_t mask = b.low;
		if (a.low == a.high)
			return span_from(a.low & mask, a.low & mask, 0, 0, bits);
		if (mask < 0 && mask != INT64_MIN && !(-mask & (-mask - 1)))
			return span_from(a.low & mask, a.high & mask, 0, zeros, bits);
		if (mask > 0 && a.low >= 0 && a.high <= fill_below(mask) &&
		    fill_below(mask) - mask == (mask & -mask) - 1)
			return span_from(a.low & mask, a.high & mask, 0, zeros, bits);
	}
	if (a.low < 0 && b.low < 0)
		return span_anything(bits);
	int64_t high = a.low < 0 ? b.high : b.low < 0 ? a.high : low_of(a.high, b.high);
	return span_from(0, high, 0, zeros, bits);
}

/* Or, and exclusive or. */
static struct span bits_join(struct span a, struct span b, uint32_t bits, bool exclusive)
{
	int64_t sum;
	a = as_number(a, bits, PROXY_SIGNED);
	b = as_number(b, bits, PROXY_SIGNED);
	if (a.base || b.base || a.low < 0 || b.low < 0)
		return span_anything(bits);
	int64_t high = fill_below(a.high | b.high);
	if (!__builtin_add_overflow(a.high, b.high, &sum))
		high = low_of(high, sum);
	return span_from(exclusive ? 0 : high_of(a.low, b.low), high, 0,
			 least_of(zeros_of(a), zeros_of(b)), bits);
}

static struct span divide(struct span a, struct span b, uint32_t bits, uint32_t sign)
{
	bool ok, also;
	a = as_bits(a, bits, sign, &ok);
	b = as_bits(b, bits, sign, &also);
	if (!ok || !also || a.base || b.base || a.low == INT64_MIN || (b.low <= 0 && b.high >= 0))
		return span_anything(bits);
	int64_t at[4] = {a.low / b.low, a.low / b.high, a.high / b.low, a.high / b.high};
	return span_from(low_of(low_of(at[0], at[1]), low_of(at[2], at[3])),
			 high_of(high_of(at[0], at[1]), high_of(at[2], at[3])), 0, 0, bits);
}

static struct span span_remainder(struct span a, struct span b, uint32_t bits, uint32_t sign)
{
	bool ok, also;
	a = as_bits(a, bits, sign, &ok);
	b = as_bits(b, bits, sign, &also);
	if (!also || b.base || b.low <= 0)
		return span_anything(bits);
	if (!ok || a.base) /* unsigned, as far as is known; or an address */
		return sign == PROXY_UNSIGNED ? span_from(0, b.high - 1, 0, 0, bits)
					      : span_anything(bits);
	if (b.low == b.high && a.low >= 0 && a.low / b.low == a.high / b.low)
		return span_from(a.low % b.low, a.high % b.low, 0, 0, bits);
	if (a.low >= 0 && a.high < b.low)
		return a;
	return span_from(a.low < 0 ? high_of(a.low, 1 - b.high) : 0,
			 a.high < 0 ? 0 : low_of(a.high, b.high - 1), 0, 0, bits);
}

static struct span extreme(struct span a, struct span b, uint32_t bits, uint32_t sign, bool most)
{
	bool ok, also;
	a = as_bits(a, bits, sign, &ok);
	b = as_bits(b, bits, sign, &also);
	if (!ok || !also || a.base || b.base)
		return span_anything(bits);
	uint32_t zeros = least_of(zeros_of(a), zeros_of(b));
	return most ? span_from(high_of(a.low, b.low), high_of(a.high, b.high), 0, zeros, bits)
		    : span_from(low_of(a.low, b.low), low_of(a.high, b.high), 0, zeros, bits);
}

/* The numbers that, shifted up, are in `a`, if all shifted ones were in `whole`. */
static struct span unshifted(struct span a, struct span by, struct span whole, uint32_t bits)
{
	int64_t most = bits < 64 ? (1ll << (bits - 1)) - 1 : INT64_MAX, up;
	if (a.base || whole.base || whole.low < 0 || whole.high > most || by.low != by.high ||
	    by.low < 0 || by.low >= SPAN_ZEROS_MAX ||
	    __builtin_add_overflow(a.low, (1ll << by.low) - 1, &up))
		return span_anything(bits);
	struct span r = {.low = up >> by.low, .high = a.high >> by.low};
	return span_empty(r) ? empty : r;
}

/* ---- unions, and the effect of comparisons ---- */

static struct span join(struct span a, struct span b, uint32_t bits)
{
	if (a.base != b.base)
		return span_anything(bits);
	return span_from(low_of(a.low, b.low), high_of(a.high, b.high), a.base,
			 least_of(zeros_of(a), zeros_of(b)), bits);
}

/* Two ranges that both hold: returns the smaller one. */
static struct span narrower_span(struct span a, struct span b)
{
	return width(b) < width(a) ? b : a;
}

/* Removes the number if it is the first or the last. */
static struct span without_end(struct span r, int64_t number)
{
	int64_t step = 1ll << zeros_of(r);
	if (number & (step - 1))
		step = 1;
	if (r.low == number && r.high == number)
		return empty;
	if (r.low == number)
		r.low += step;
	else if (r.high == number)
		r.high -= step;
	return r;
}

/* Keeps only multiples of 2^zeros. */
static struct span multiples_in(struct span r, uint32_t zeros)
{
	int64_t step = 1ll << zeros, low;
	r.zeros = zeros;
	if (__builtin_add_overflow(r.low, step - 1, &low))
		return r;
	r.low = low & -step;
	r.high &= -step;
	return r;
}

/* Addresses can be compared by their offsets, if these are small. */
static bool offsets_comparable(struct span a, struct span b)
{
	if (a.base != b.base)
		return false;
	return !a.base || (a.low > -SPAN_OFFSET_MAX && a.high < SPAN_OFFSET_MAX &&
			   b.low > -SPAN_OFFSET_MAX && b.high < SPAN_OFFSET_MAX);
}

static struct span narrowed(struct span a, struct span b, uint32_t op)
{
	switch (op) {
	case PROXY_STEP_BELOW:
		if (b.high == INT64_MIN)
			return a;
		a.high = low_of(a.high, b.high - 1);
		break;
	case PROXY_STEP_AT_MOST: a.high = low_of(a.high, b.high); break;
	case PROXY_STEP_ABOVE:
		if (b.low == INT64_MAX)
			return a;
		a.low = high_of(a.low, b.low + 1);
		break;
	case PROXY_STEP_AT_LEAST: a.low = high_of(a.low, b.low); break;
	case PROXY_STEP_EQUAL:
		a.low = high_of(a.low, b.low);
		a.high = low_of(a.high, b.high);
		break;
	default:
		if (b.low == b.high)
			a = without_end(a, b.low);
		break;
	}
	a = multiples_in(a, a.zeros);
	return span_empty(a) ? empty : a;
}

static bool is_null(struct span r) { return !r.base && !r.low && !r.high; }

static bool is_address(struct span r)
{
	return r.base && r.low > -SPAN_OFFSET_MAX && r.high < SPAN_OFFSET_MAX;
}

static struct span compared(struct span a, struct span b, const struct proxy_step *s)
{
	bool ok, also;
	if (s->op == PROXY_STEP_EQUAL && s->bits == 64 &&
	    ((is_address(a) && is_null(b)) || (is_address(b) && is_null(a))))
		return empty;
	struct span bits = as_bits(a, s->bits, s->sign, &ok);
	b = as_bits(b, s->bits, s->sign, &also);
	if (!also || !offsets_comparable(bits, b))
		return a;
	if (!ok) { /* unsigned, perhaps above all signed ones: only an upper limit helps */
		if (s->op != PROXY_STEP_BELOW && s->op != PROXY_STEP_AT_MOST &&
		    s->op != PROXY_STEP_EQUAL)
			return a;
		bits.low = high_of(bits.low, 0);
	}
	struct span left = narrowed(bits, b, s->op);
	return span_empty(left) || width(left) < width(a) ? left : a;
}

/* ---- loops ---- */

static struct span guess_in_loop(struct span start, struct span edge, struct span by, uint32_t bits,
				 bool rising)
{
	struct span r = start, all = span_anything(bits);
	bool same = edge.base == start.base && !span_empty(edge);
	if (rising)
		r.high = high_of(start.high, same ? edge.high : all.high);
	else
		r.low = low_of(start.low, same ? edge.low : all.low);
	return multiples_in(r, least_of(zeros_of(start), zeros_of(by)));
}

/* The possible values of a variable in a loop: its start, and its value after a turn in which it
 * was in `guess`, if no turn leads out of `guess`. Otherwise anything. */
static struct span range_in_loop(struct span start, struct span guess, struct span next,
				 uint32_t bits)
{
	if (span_empty(start) || span_empty(next))
		return start;
	if (start.base != guess.base || next.base != guess.base || next.low < guess.low ||
	    next.high > guess.high || start.low < guess.low || start.high > guess.high ||
	    zeros_of(next) < guess.zeros || zeros_of(start) < guess.zeros)
		return span_anything(bits);
	return join(start, next, bits);
}

static bool fits(struct span r, uint32_t bits)
{
	int64_t half = bits < 64 ? 1ll << (bits - 1) : INT64_MAX;
	return !is_anything(r, bits) && ((r.low >= -half && r.high < half) ||
					 (bits < 64 && r.low >= 0 && r.high < 2 * half));
}

/* How often a loop can turn in which a value moves through `all` in steps of `by` without wrapping
 * around; `next`: its value after a turn. */
static struct span turns_of_loop(struct span all, struct span by, struct span next, uint32_t bits)
{
	struct span none = {0};
	if (span_empty(all) || span_empty(next) || span_empty(by))
		return none;
	bool inside = all.base == next.base && !by.base && fits(all, bits) && fits(next, bits);
	/* Both in the same range: all signed numbers, or none negative. */
	struct span whole = join(all, next, bits);
	if (!inside || !fits(whole, bits) || (by.low <= 0 && by.high >= 0))
		return span_anything(64);
	uint64_t fewest = by.low > 0 ? (uint64_t)by.low : -(uint64_t)by.high;
	return (struct span){.low = 0, .high = (int64_t)(width(all) / fewest & INT64_MAX)};
}

static struct span after_turns(struct span start, struct span by, struct span turns, uint32_t bits)
{
	if (span_empty(start) || span_empty(by) || span_empty(turns))
		return start;
	struct span moved = multiply(by, turns, 64);
	moved.low = low_of(moved.low, 0);
	moved.high = high_of(moved.high, 0);
	moved.zeros = zeros_of(by);
	return is_anything(turns, 64) ? span_anything(bits) : add(start, moved, bits);
}

/* ---- division by multiplication ---- */

/* The factor and the shift of the division by a number below 2^31 (Granlund and Montgomery, 1994):
 * exact for numbers below 2^31, whose sum with the product's upper half is below 2^32. */
static struct span division_of(struct span factor, struct span shift, struct span by)
{
	const uint64_t d = (uint64_t)by.low, s = (uint64_t)shift.low;
	bool known = !factor.base && !shift.base && !by.base && factor.low == factor.high &&
		     shift.low == shift.high && by.low == by.high;
	if (!known || d < 1 || d >= 1ull << 31 || s > 31 || 1ull << s < d ||
	    (uint64_t)factor.low != (((1ull << s) - d) << 32) / d + 1)
		return span_anything(32);
	return by;
}

static struct span if_signed(struct span a, struct span b, uint32_t bits)
{
	bool ok;
	b = as_bits(b, bits, PROXY_SIGNED, &ok);
	return ok && !b.base && b.low >= 0 ? a : span_anything(bits);
}

/* ---- steps ---- */

static struct span of_two(const struct proxy_step *s, struct span a, struct span b)
{
	if (s->op == PROXY_STEP_JOIN && (span_empty(a) || span_empty(b)))
		return span_empty(a) ? b : a;
	if (span_empty(a) || span_empty(b))
		return empty;
	switch (s->op) {
	case PROXY_STEP_ADD: return add(a, b, s->bits);
	case PROXY_STEP_SUBTRACT: return subtract(a, b, s->bits);
	case PROXY_STEP_MULTIPLY: return multiply(a, b, s->bits);
	case PROXY_STEP_SHIFT_UP: return shift_up(a, b, s->bits);
	case PROXY_STEP_SHIFT_DOWN: return shift_down(a, b, s->bits, s->sign);
	case PROXY_STEP_AND: return bits_and(a, b, s->bits);
	case PROXY_STEP_OR: return bits_join(a, b, s->bits, false);
	case PROXY_STEP_XOR: return bits_join(a, b, s->bits, true);
	case PROXY_STEP_DIVIDE: return divide(a, b, s->bits, s->sign);
	case PROXY_STEP_REST: return span_remainder(a, b, s->bits, s->sign);
	case PROXY_STEP_LEAST: return extreme(a, b, s->bits, s->sign, false);
	case PROXY_STEP_MOST: return extreme(a, b, s->bits, s->sign, true);
	case PROXY_STEP_JOIN: return join(a, b, s->bits);
	case PROXY_STEP_BOTH: return narrower_span(a, b);
	case PROXY_STEP_IF: return a;
	case PROXY_STEP_IF_SIGNED: return if_signed(a, b, s->bits);
	default: return compared(a, b, s);
	}
}

struct span span_of(const struct proxy_step *s, struct span a, struct span b, struct span c)
{
	switch (s->op) {
	case PROXY_STEP_AS: return span_empty(a) ? a : as_number(a, s->bits, s->sign);
	case PROXY_STEP_RISING:
	case PROXY_STEP_FALLING:
		return span_empty(a) ? a
				     : guess_in_loop(a, b, c, s->bits, s->op == PROXY_STEP_RISING);
	case PROXY_STEP_LOOP: return range_in_loop(a, b, c, s->bits);
	case PROXY_STEP_TURNS: return turns_of_loop(a, b, c, s->bits);
	case PROXY_STEP_STRIDE: return after_turns(a, b, c, s->bits);
	case PROXY_STEP_DIVISOR:
		return span_empty(a) || span_empty(b) || span_empty(c) ? empty
								       : division_of(a, b, c);
	case PROXY_STEP_PART:
		return span_empty(a) || span_empty(b) || span_empty(c)
			       ? empty
			       : unshifted(a, b, c, s->bits);
	default: return of_two(s, a, b);
	}
}
