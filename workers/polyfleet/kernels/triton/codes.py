# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, assignment"
"""Words of weight codes made numbers again, in registers, on their way into a matrix product.

A word of 32 bits has 8 codes of 4 bits or 4 of fp8 (e4m3), whose columns lie SPAN apart (see `packed`). So the codes of
neighbouring words at one place are neighbouring columns, and a pair of them is one operand of the matrix unit.

A group's scale and minimum are one word too: bfloat16 both, the scale in the low half.
"""

import triton
import triton.language as tl

DENSE, FP8, INT4 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # kinds of weights
BYTES, NIBBLES = tl.constexpr(3), tl.constexpr(4)  # those of fp8 and int4 as they are, to be met by pairs


@triton.constexpr_function
def pack_of(kind):
    """Codes of a word, of a byte where that is met."""
    return (1, 4, 8, 1, 2)[kind]


@triton.constexpr_function
def _assembly(kind, first, count, minima):
    """PTX: of two words the codes `first` … `first + count - 1`, each pair as two bfloat16 in one register."""
    word, other, group = (f"${count + number}" for number in range(3))
    lines = ["{ .reg .b32 p, t, z, s, m;", f"prmt.b32 s, {group}, {group}, 0x1010;"]
    lines += [f"prmt.b32 m, {group}, {group}, 0x3232;", f"mov.b32 z, {'0x43004300' if minima else '0x43084308'};"]
    for place in range(first, first + count):
        target = f"${place - first}"
        if kind == 1:
            pair = (4 + place) << 12 | (4 + place) << 8 | place << 4 | place
            lines += [f"prmt.b32 p, {word}, {other}, {pair:#x};", "shr.b32 t, p, 4;", "and.b32 t, t, 0x07F007F0;"]
            lines += ["lop3.b32 t, p, 0x80008000, t, 0xEA;", f"mul.rn.bf16x2 {target}, t, s;"]
            continue
        half = place % 4 // 2  # of the words, in which two bytes lie
        if place == first or place % 2 == 0:
            lines.append(f"prmt.b32 p, {word}, {other}, {'0x7632' if half else '0x5410'};")
        lines.append(f"shr.b32 t, p, {place % 2 * 8 + place // 4 * 4};")
        lines += ["lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;", "sub.rn.bf16x2 t, t, z;"]
        lines.append(f"fma.rn.bf16x2 {target}, t, s, m;" if minima else f"mul.rn.bf16x2 {target}, t, s;")
    return "\n".join(lines) + "}"


@triton.constexpr_function
def _constraints(outputs, inputs):
    return ",".join(["=r"] * outputs + ["r"] * inputs)


@triton.constexpr_function
def _bfloats(count):
    return (tl.bfloat16,) * count


@triton.jit
def numbers_of(
    words, group, dtype: tl.constexpr, KIND: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr,
    MINIMA: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """The codes FIRST … FIRST + COUNT - 1 of words [N, SPAN], whose groups' words are [N], as COUNT x [N, SPAN].

    int4 counts from 8 where there are no minima. Scales of fp8 are 2^120 times what they should be.
    """
    if ASSEMBLY:
        code: tl.constexpr = _assembly(KIND, FIRST, COUNT, MINIMA)
        operands = [words, tl.broadcast_to(group[:, None], words.shape)]
        return tl.inline_asm_elementwise(
            code, _constraints(COUNT, 4), operands, dtype=_bfloats(COUNT), is_pure=True, pack=2
        )
    else:
        scale = (group << 16).to(tl.float32, bitcast=True)[:, None]
        minimum = (group & -65536).to(tl.float32, bitcast=True)[:, None]
        numbers = ()
        for place in tl.static_range(FIRST, FIRST + COUNT):
            if KIND == FP8:
                byte = words >> (8 * place)
                bits = ((byte & 0x80) << 24) | ((byte & 0x7F) << 20)
                number = bits.to(tl.float32, bitcast=True) * scale
            else:
                code = ((words >> (8 * (place % 4) + place // 4 * 4)) & 0xF).to(tl.float32)
                number = code * scale + minimum if MINIMA else (code - 8.0) * scale
            numbers = numbers + (number.to(dtype),)  # noqa: RUF005
        return numbers


@triton.jit
def unpack_kernel(
    codes, groups, out,
    N: tl.constexpr, K: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, MINIMA: tl.constexpr,
    SPAN: tl.constexpr, BLOCK: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """`out` [N, K]: one chunk of BLOCK rows."""
    chunk = tl.program_id(1)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < N
    column = tl.arange(0, SPAN)
    PACK: tl.constexpr = pack_of(KIND)
    place = row.to(tl.int64)[:, None] * (K // PACK) + chunk * SPAN + column[None, :]
    words = tl.load(codes + place, mask=inside[:, None], other=0)
    target = out + row.to(tl.int64)[:, None] * K + chunk * PACK * SPAN + column[None, :]
    for number in tl.static_range(PACK):
        group = tl.load(groups + (chunk * PACK + number) * SPAN // GROUP * N + row, mask=inside, other=0)
        numbers = numbers_of(words, group, out.dtype.element_ty, KIND, number, 1, MINIMA, ASSEMBLY)
        tl.store(target + number * SPAN, numbers[0], mask=inside[:, None])
