"""The libcuda driver's own kernels, in PTX: small copies, and conditions of graphs.

A copy of a few kilobytes between the device and pinned memory is faster by a kernel than by a copy
engine: a graph that has only kernels is issued at once, without waits for another engine.
"""

from __future__ import annotations

COPY, SET_CONDITION = "copy", "set_condition"
THREADS = 256  # of a block of `COPY`
PIECE = 16  # bytes that a thread of `COPY` moves

#: copy(target, source, pieces)
COPY_TEXT = """
.version 6.3
.target sm_70
.address_size 64

.visible .entry copy (.param .u64 target, .param .u64 source, .param .u64 pieces)
{
    .reg .pred %beyond;
    .reg .b32 %block, %threads, %thread, %w0, %w1, %w2, %w3;
    .reg .b64 %number, %count, %offset, %from, %to;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %block, %block, %threads, %thread;
    cvt.u64.u32 %number, %block;
    ld.param.u64 %count, [pieces];
    setp.ge.u64 %beyond, %number, %count;
    @%beyond bra DONE;
    shl.b64 %offset, %number, 4;
    ld.param.u64 %from, [source];
    ld.param.u64 %to, [target];
    cvta.to.global.u64 %from, %from;
    cvta.to.global.u64 %to, %to;
    add.u64 %from, %from, %offset;
    add.u64 %to, %to, %offset;
    ld.volatile.global.v4.u32 {%w0, %w1, %w2, %w3}, [%from];
    st.global.v4.u32 [%to], {%w0, %w1, %w2, %w3};
DONE:
    ret;
}
"""

#: set_condition(handle, truth, fault, stop, negated): sets the condition of a node to the byte at
#: `truth`, negated if `negated`; to zero if the fault word or the byte at `stop` is set.
CONDITION_TEXT = """
.version 6.3
.target sm_70
.address_size 64

.extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);

.visible .entry set_condition (
    .param .u64 handle,
    .param .u64 truth,
    .param .u64 fault,
    .param .u64 stop,
    .param .u64 negated
)
{
    .reg .pred %stops;
    .reg .b16 %byte;
    .reg .b32 %is_true, %word, %ended;
    .reg .b64 %node, %address;
    .param .b64 given_handle;
    .param .b32 given_value;
    ld.param.u64 %address, [truth];
    cvta.to.global.u64 %address, %address;
    ld.volatile.global.u8 %byte, [%address];
    cvt.u32.u16 %is_true, %byte;
    ld.param.u64 %address, [negated];
    cvt.u32.u64 %word, %address;
    xor.b32 %is_true, %is_true, %word;
    ld.param.u64 %address, [fault];
    cvta.to.global.u64 %address, %address;
    ld.volatile.global.u32 %ended, [%address];
    ld.param.u64 %address, [stop];
    cvta.to.global.u64 %address, %address;
    ld.volatile.global.u8 %byte, [%address];
    cvt.u32.u16 %word, %byte;
    or.b32 %ended, %ended, %word;
    setp.ne.u32 %stops, %ended, 0;
    selp.u32 %is_true, 0, %is_true, %stops;
    ld.param.u64 %node, [handle];
    st.param.b64 [given_handle], %node;
    st.param.b32 [given_value], %is_true;
    call.uni cudaGraphSetConditional, (given_handle, given_value);
    ret;
}
"""
