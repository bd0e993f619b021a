"""The faults of mutations.py: each a place in the source, found exactly once, and what is written there instead."""

from __future__ import annotations

import re
from dataclasses import dataclass

QUICK_TESTS = ("test_ties.c", "test_rotate.c", "test_sample.c")
EQUALITY_TESTS = (*QUICK_TESTS, "test_engines.py", "test_fixed_c.py")
FIXED_TESTS = ("test_fixed_c.py",)
POOL_TESTS = ("test_engines.py::test_embeddings_are_the_same_in_all_engines",)
IMAGE_TESTS = ("test_engines.py::test_images_give_the_same_in_all_engines",)
SPECIFICATION_TESTS = ("test_fixedpoint.py", "test_golden.py")
ALIBI_TESTS = ("test_compiler_constants.py", "test_positions_alibi.py")
ROWS_TESTS = ("test_rotate.c", "test_positions_rows.py")
INCREMENT_TESTS = ("test_positions_increments.py",)
GENERATION_TESTS = ("test_runtime_generation.py",)
CHAT_TESTS = ("test_chat.py",)


@dataclass(frozen=True)
class Mutation:
    """`old` becomes `new` in `file`. tests: files, or single tests of one, that must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = EQUALITY_TESTS

    def apply(self, text: str) -> str:
        if text.count(self.old) != 1:
            raise SystemExit(f"mutation {self.name}: {self.old!r} is {text.count(self.old)} times in {self.file}, once expected; bring it up to date")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Entry(Mutation):
    """Adds to one entry of the C table `old`; `new` is "INDEX+NUMBER"."""

    def apply(self, text: str) -> str:
        match = re.search(rf"\b{self.old}\[\d+\] = \{{([^}}]*)\}}", text)
        if not match:
            raise SystemExit(f"mutation {self.name}: table {self.old} was not found in {self.file}; bring it up to date")
        index, delta = map(int, self.new.split("+"))
        numbers = [int(word) for word in match[1].replace("\n", " ").split(",") if word.strip()]
        numbers[index] += delta
        return text[: match.start(1)] + ", ".join(map(str, numbers)) + text[match.end(1) :]


_SRC = "c_runtime/src/"
MUTATIONS = (
    # Rounding constants and saturations.
    Mutation("rshift_round rounds down", _SRC + "fixed.h", "int64_t v = x >> (n - 1);\n  return (v >> 1) + (v & 1);", "return x >> n;"),
    Mutation(
        "requant rounds down", _SRC + "fixed.h",
        "int64_t v = hi >> (s > 63 ? 63 : s);\n    return (v >> 1) + (v & 1);", "int64_t v = hi >> (s > 63 ? 63 : s);\n    return v >> 1;",
    ),
    Mutation(
        "small requant rounds down", _SRC + "fixed.h",
        "(lo >> s);\n    return (v >> 1) + (v & 1);", "(lo >> s);\n    return v >> 1;",
    ),
    Mutation("division rounds down", _SRC + "fixed.h", "(q + (r >= d - r))", "(q)"),
    Mutation("division of negative numbers rounds away", _SRC + "fixed.h", "q += r > d - r;", "q += r >= d - r;"),
    Mutation("sat32 wraps at the top", _SRC + "fixed.h", "return x > INT32_MAX ? INT32_MAX : x < INT32_MIN", "return x < INT32_MIN"),
    Mutation("sat32 wraps at the bottom", _SRC + "fixed.h", ": x < INT32_MIN ? INT32_MIN : (int32_t)x", ": (int32_t)x"),
    Mutation("repeated positions do not repeat", _SRC + "exec.c", "modulo ? at % modulo : at", "modulo ? (at < modulo ? at : modulo - 1) : at"),
    Mutation("saturations are not counted", _SRC + "fixed.h", "*count += y != x;", "(void)count;"),
    Mutation("requant far outside wraps", _SRC + "fixed.h", "if (top < -4 || top > 3) return far;", "", FIXED_TESTS),
    Mutation("bias is added without saturation", _SRC + "kernels/generic.c", "y[i] = ep_sat32_count((int64_t)y[i] + how->beta[i], count)", "y[i] = (int32_t)((uint32_t)y[i] + (uint32_t)how->beta[i])"),
    Mutation("Narrow reaches 32767", _SRC + "fixed.h", "(ep_rshift_round(a, s) > 32639)", "(ep_rshift_round(a, s) > 32767)"),
    # Tables.
    Entry("a quarter-wave entry", _SRC + "constants.h", "EP_QUARTER", "100+40000"),
    Entry("an exp2 entry", _SRC + "constants.h", "EP_EXP2", "77+64"),
    # Operators.
    Mutation("no epsilon", _SRC + "kernels/elements.h", "ep_rsqrt(squares + (uint64_t)epsilon)", "ep_rsqrt(squares)"),
    Mutation("LayerNorm without its mean", _SRC + "kernels/elements.h", "(int64_t)how->d * x - sum : x", "(int64_t)how->d * x : x"),
    Mutation("RoPE turns backwards", _SRC + "kernels/requant_each.h", "x * c[j] - y * s[j]", "x * c[j] + y * s[j]"),
    Mutation("RoPE layouts swapped", _SRC + "exec.c", "|| op[EP_O_P0 + 2]))", "|| !op[EP_O_P0 + 2]))"),
    Mutation("positions one late", _SRC + "exec.c", "(uint32_t)s->positions[s->length + t], increment", "(uint32_t)s->positions[s->length + t] + 1, increment"),
    Mutation("turns of the batch before", _SRC + "session.c", "s->turns_of = -1;", "if (!s->length) s->turns_of = -1;"),
    Mutation("turns of another layer's increments", _SRC + "exec.c", "s->turns_of != op[EP_O_T0]", "s->turns_of < 0"),
    Mutation("activations without interpolation", _SRC + "kernels/elements.h", "if (f) y += (", "if (0) y += ("),
    Mutation("group scales one off", _SRC + "kernels/generic.c", "dot32(w + c, x + c) * g[c / 32]", "dot32(w + c, x + c) * g[(c + 32) % cols / 32]"),
    Mutation("scales of inputs one off", _SRC + "kernels/generic.c", "(int64_t)(sum * d[i])", "(int64_t)(sum * d[(i + 1) % groups])"),
    Mutation("inputs in groups round down", _SRC + "fixed.c", "(i < n ? x[i] : 0, s) + 255 * d;", "(i < n ? x[i] : 0, s) + 254 * d;"),
    Mutation("inputs in groups reach 128", _SRC + "fixed.h", "(((a - 1) >> s) + 127) / 127", "(((a - 1) >> s) + 127) / 128"),
    Mutation("a minimum without the scale of its inputs", _SRC + "kernels/generic.c", "dot * g[0] + (int64_t)sum * g[1];", "dot * g[0] + (int64_t)sum * (g[1] >> 1);"),
    Mutation("fine parts of other rows", _SRC + "linear.c", "op[EP_O_T2]) + row, t)", "op[EP_O_T2]) + (row ? row - 1 : 1), t)"),
    Mutation("an input is narrowed like another one", _SRC + "linear.c", "return before[EP_O_IN0] == op[EP_O_IN0] &&", "return"),
    Mutation("golden's inputs round twice", "edgepos/fixedpoint.py", "return div_round_half_up(groups, (d << s[..., None])[..., None])", "return div_round_half_up(rshift_round(groups, s[..., None, None]), d[..., None])", SPECIFICATION_TESTS),
    Mutation("vectors turn heads by a wrong sign", _SRC + "kernels/rotate_avx2.c", "_mm256_sub_epi16(_mm256_setzero_si256(), vs)", "vs", ROWS_TESTS),
    Mutation("vectors round down", _SRC + "kernels/rotate_avx2.c", "_mm256_set1_epi32(1 << 14)", "_mm256_set1_epi32((1 << 14) - 1)", ROWS_TESTS),
    Mutation("vectors take sums that wrap", _SRC + "kernels/rotate.h", "EP_ROTATE_SUM = 49152", "EP_ROTATE_SUM = 65535", ROWS_TESTS),
    Mutation("rotation saturates one early", _SRC + "rotate.c", "y > limit ? limit", "y >= limit ? limit - 1", ROWS_TESTS),
    Mutation("relative rows of another extent", _SRC + "position_rows.c", "at * (2 * extent + 1)", "at * (2 * extents[0] + 1)", ROWS_TESTS),
    Mutation("clipping one short", _SRC + "position_rows.c", "d > extent ? extent : d", "d > extent ? extent - 1 : d", ROWS_TESTS),
    Mutation("padding is counted", _SRC + "position_rows.c", "rows[i] = how->offset - 1;", "rows[i] = how->offset - 1, position++;", ROWS_TESTS),
    Mutation("sinusoids without their start", _SRC + "positions.c", "position + how->start)", "position)", ROWS_TESTS),
    Mutation("sinusoids round down", _SRC + "positions.c", "ep_rshift_round((int64_t)second * how->m, how->shift)", "((int64_t)second * how->m >> (how->shift & 63))", ROWS_TESTS),
    Mutation("increments round down", _SRC + "increments.c", "add(&high, &half), add(&high, &radius);", "add(&high, &radius);", INCREMENT_TESTS),
    Mutation("increments next to a tie are guessed", _SRC + "increments.c", "return low.word[4] == high.word[4];", "return 1;", INCREMENT_TESTS),
    Mutation("a constant of increments", _SRC + "constants.h", "#define EP_LN2 {0x7298b62e, 0x40f34326, 0x03f2f6af, 0xc9e3b398", "#define EP_LN2 {0x7298b62e, 0x40f34326, 0x03f2f6af, 0xc9e3b399", INCREMENT_TESTS),
    Mutation("increments of theta below 1 shrink", _SRC + "increments.c", "(theta->num > theta->den ? subtract : add)(&w, &part)", "subtract(&w, &part)", INCREMENT_TESTS),
    Mutation("golden increments without the carry of octaves", "edgepos/fixedpoint.py", "return 2 * total + k * increment_constants()[0]", "return 2 * total", INCREMENT_TESTS),
    # Attention.
    Mutation("GQA head map swapped", _SRC + "attention.c", "h / (heads / l->heads)", "h % l->heads"),
    Mutation("a query does not see itself", _SRC + "attention.h", "op[EP_O_P0 + 7] ? n : t + 1", "op[EP_O_P0 + 7] ? n : t + !(s->length + t)"),
    Mutation("kv8 scales are not folded", _SRC + "kernels/requant_each.h", "p[j] = EP_REQUANT((int64_t)p[j] * a[j], m, shift, &never)", "p[j] = EP_REQUANT((int64_t)p[j] * a[0], m, shift, &never)"),
    Mutation("kv16 shifts are not folded", _SRC + "kernels/generic.c", "p[j] = (int32_t)ep_rshift_round(p[j], most - s[j])", "(void)s"),
    Mutation("ALiBi of another head", _SRC + "attention.c", "[a->head]", "[a->head ? a->head - 1 : 1]"),
    Mutation("ALiBi from the slot, not the position", _SRC + "attention.c", "a.position = b->s->positions[slot]", "a.position = slot", ("test_engines.py::test_cuts_batches_and_threads_change_nothing",)),
    # Embeddings.
    Mutation("the mean is rounded down", _SRC + "pool.c", "(int32_t)ep_div_round_half_up(sum, n)", "(int32_t)(sum >= 0 ? sum / n : -((n - 1 - sum) / n))", POOL_TESTS),
    Mutation("the mean leaves out a token", _SRC + "pool.c", "for (int32_t t = 0; t < n; t++, x += width)", "for (int32_t t = 0; t < n - (n > 1); t++, x += width)", POOL_TESTS),
    Mutation("the last row is the first", _SRC + "pool.c", "if (kind == LAST) return n - 1;", "if (kind == LAST) return 0;", POOL_TESTS),
    Mutation("the largest becomes the smallest", _SRC + "pool.c", "if (*x > largest) largest = *x;", "if (*x < largest) largest = *x;", POOL_TESTS),
    Mutation("of equal largest ids the last counts", _SRC + "pool.c", "ids[t] > ids[at]", "ids[t] >= ids[at]", POOL_TESTS),
    Mutation("the token of a pooling is not looked for", _SRC + "pool.c", "ids[t] == id", "ids[t] == 0", POOL_TESTS),
    Mutation("golden's mean is rounded down", "edgepos/golden.py", "fx.div_round_half_up(x.sum(axis=0, keepdims=True), np.int64(len(x)))", "x.sum(axis=0, keepdims=True) // len(x)", SPECIFICATION_TESTS),
    # Images.
    Mutation("a patch begins a row too high", _SRC + "image.c", "(size_t)(at / across * patch) * row", "(size_t)(at / across * patch - (at >= across)) * row", IMAGE_TESTS),
    Mutation("a byte is not taken from its zero", _SRC + "image.c", "y[k] = from[k] - zero", "y[k] = from[k]", IMAGE_TESTS),
    Mutation("the first patch stands where the class token does", _SRC + "image.c", "if (t < first)", "if (t + 1 < first)", IMAGE_TESTS),
    # Choices.
    Mutation("argmax takes the last of equals", _SRC + "head.c", "if (*y > best) best", "if (*y >= best) best"),
    Mutation("argmax over threads takes the last of equals", _SRC + "head.c", "lane->best > best->best", "lane->best >= best->best"),
    Mutation("sampling takes the last of equals", _SRC + "sample.c", "logits[i] > logits[best]", "logits[i] >= logits[best]"),
    Mutation("another multiplier of the generator", _SRC + "sample.c", "6364136223846793005u", "6364136223846793013u"),
    Mutation("another increment of the generator", _SRC + "sample.c", "1442695040888963407u", "1442695040888963405u"),
    Mutation("penalty raises negative logits", _SRC + "sample.c", "ep_rshift_round(l * (int64_t)penalty, 16)", "ep_div_round_half_up(l * 65536, penalty)", GENERATION_TESTS),
    Mutation("penalty counts repetitions", _SRC + "sample.c", "scratch[t >> 5] |= bit;", "", GENERATION_TESTS),
    Mutation("penalty without saturation", _SRC + "sample.c", "ep_sat32(ep_rshift_round(l * (int64_t)penalty, 16))", "(int32_t)ep_rshift_round(l * (int64_t)penalty, 16)", GENERATION_TESTS),
    Mutation("loss without the quadratic term", _SRC + "fixed.c", "- x + (x * x >> 33)", "- x", GENERATION_TESTS),
    Mutation("stop strings are shown in part", _SRC + "chat.c", "if (found < 0 && at < held) held = at;", "", GENERATION_TESTS),
    Mutation("an answer begins behind the first marker", _SRC + "chat.c", "start = at += size;", "return at + size;", CHAT_TESTS),
    Mutation("line feeds behind a marker stay", _SRC + "chat.c", "while (row[2] & MARKER_LINES && ", "while (0 && ", CHAT_TESTS),
    Mutation("chat keeps white space that a join takes", _SRC + "chat.c", "size -= space_behind((const uint8_t *)own + start, size - start);", "(void)space_behind;", CHAT_TESTS),
    Mutation("chat renders empty contents", _SRC + "chat.c", "flags >> (role - 1) & 1", "flags >> (role + 8) & 1", CHAT_TESTS),
    Mutation("contents hold control tokens", _SRC + "tokenizer.c", "if (w->content < w->n_contents) room =", "if (w->content > w->n_contents) room =", ("test_chat.py::test_contents_cannot_hold_control_tokens",)),
    Mutation("golden penalty on every occurrence", "edgepos/sampling.py", "text[-self.penalty_last :]", "text[: self.penalty_last or None]", GENERATION_TESTS),
    # The specification itself, against mathematics.
    Mutation("golden GQA head map swapped", "edgepos/golden.py", "np.arange(heads) * cache.k.shape[0] // heads", "np.arange(heads) % cache.k.shape[0]", SPECIFICATION_TESTS),
    Mutation("golden rounds down", "edgepos/fixedpoint.py", "return _i64((half >> 1) + (half & 1))", "return _i64(half >> 1)", SPECIFICATION_TESTS),
    Mutation("golden rounds down beside left shifts", "edgepos/fixedpoint.py", "right = (half >> 1) + (half & 1)", "right = half >> 1", SPECIFICATION_TESTS),
    Mutation("golden without epsilon", "edgepos/golden.py", "int((small * small).sum()) + epsilon", "int((small * small).sum())", SPECIFICATION_TESTS),
    Mutation("one ALiBi slope of the compiler", "edgepos/compiler/constants.py", "return plan.slopes.view(np.int32), plan.shift", "plan.slopes[-1] += 1\n    return plan.slopes.view(np.int32), plan.shift", ALIBI_TESTS),
)  # fmt: skip
