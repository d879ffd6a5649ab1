"""The loops whose cycles are computed are those of the compiler's assembly."""

from benchmarks.codecs.profiling.cycles import loops_in

ASSEMBLY = """
_ZTABLE:
\t.long\t1
_ZN3sumEv:
.LFB1:
\t.cfi_startproc
\txorl\t%eax, %eax
.L3:
\tmovl\t%esi, %ecx
\t.p2align 4
.L2:
\taddl\t(%rdi), %eax
\tjne\t.L2
\tjmp\t.L4
\tjb\t.L3
.L4:
\tret
\t.cfi_endproc
"""


def test_a_loop_goes_from_a_label_to_a_jump_back_to_it() -> None:
    inner, outer = loops_in(ASSEMBLY, "sum")
    assert inner == ["\taddl\t(%rdi), %eax", "\tjne\t.L2"]
    assert outer == ["\tmovl\t%esi, %ecx", *inner, "\tjmp\t.L4", "\tjb\t.L3"]
    assert list(loops_in(ASSEMBLY, "product")) == []
