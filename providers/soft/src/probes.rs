//! Static probes for tracers (USDT: `bpftrace -l 'usdt:FILE:*'`, `break -probe` of gdb(1)). A probe
//! is one `nop`, and a note in the file that names the probe and tells where its arguments are
//! (systemtap's UserSpaceProbeImplementation). docs/guide/probes.md describes them for users.
//!
//! The provider is `rdma_core_soft`, and names are those of the tracepoints of rdma-core's plugins
//! where these have them (`rdma_core_efa:post_send` and others). On the fast path each argument is
//! a value that the caller has in a register, or a field that the tracer reads from memory, so a
//! probe needs no instruction besides the `nop`.

use crate::engine::queues::qp::Qp;
use abi::ibv_qp;
use probe::probe;
use soft_semantics::completion::Cqe;

/// The operand of a field in memory: size in bytes, offset, register.
#[cfg(target_arch = "x86_64")]
macro_rules! operand {
    ($field:ident) => {
        "{}@{}({base})"
    };
}
#[cfg(not(target_arch = "x86_64"))]
macro_rules! operand {
    ($field:ident) => {
        "{}@[{base}, {}]"
    };
}

/// The size of the field that a function finds.
const fn field_size<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// As [`probe!`], which passes values in registers only. Here the first arguments are such values,
/// and the rest are fields of `$base`.
#[cfg(target_arch = "x86_64")]
macro_rules! probe_fields {
    ($($all:tt)*) => { note!([, att_syntax] $($all)*) };
}
#[cfg(not(target_arch = "x86_64"))]
macro_rules! probe_fields {
    ($($all:tt)*) => { note!([] $($all)*) };
}

macro_rules! note {
    ([$($option:tt)*] $name:ident, [$($value:expr),*], $base:expr => $type:ty,
     $first:ident $(, $field:ident)*) => {
        // SAFETY: the instruction is a `nop`; the rest is a note in a section that is not loaded.
        // The offsets are those of fields, so a tracer reads inside of the object.
        unsafe {
            std::arch::asm!(
                concat!(
                    "990: nop\n",
                    ".pushsection .note.stapsdt,\"?\",\"note\"\n",
                    ".balign 4\n",
                    ".4byte 992f-991f, 994f-993f, 3\n",
                    "991: .asciz \"stapsdt\"\n",
                    "992: .balign 4\n",
                    "993: .8byte 990b, _.stapsdt.base, 0\n",
                    ".asciz \"rdma_core_soft\"\n",
                    ".asciz \"", stringify!($name), "\"\n",
                    ".asciz \"", $(note!(@value $value),)* operand!($first),
                    $(" ", operand!($field),)* "\"\n",
                    "994: .balign 4\n",
                    ".popsection\n",
                    ".ifndef _.stapsdt.base\n",
                    ".pushsection .stapsdt.base,\"aGR\",\"progbits\",.stapsdt.base,comdat\n",
                    ".weak _.stapsdt.base\n",
                    ".hidden _.stapsdt.base\n",
                    "_.stapsdt.base: .space 1\n",
                    ".size _.stapsdt.base, 1\n",
                    ".popsection\n",
                    ".endif",
                ),
                $(in(reg) ($value) as u64,)*
                const field_size(|object: &$type| &object.$first),
                const std::mem::offset_of!($type, $first),
                $(
                    const field_size(|object: &$type| &object.$field),
                    const std::mem::offset_of!($type, $field),
                )*
                base = in(reg) $base.cast::<$type>(),
                options(readonly, nostack, preserves_flags $($option)*),
            )
        }
    };
    (@value $value:expr) => { "8@{} " };
}

/// A send request was accepted. `length` is in bytes.
#[inline(always)]
pub(crate) fn post_send(wr_id: u64, opcode: u32, length: u32, qp: &Qp) {
    probe_fields!(post_send, [wr_id, opcode, length], qp.handle() => ibv_qp, qp_num);
}

/// A receive request reached the queue of a QP.
#[inline(always)]
pub(crate) fn post_recv(wr_id: u64, num_sge: usize, qp: &Qp) {
    probe_fields!(post_recv, [wr_id, num_sge], qp.handle() => ibv_qp, qp_num);
}

/// A poll hands out a completion.
#[inline(always)]
pub(crate) fn process_completion(cqe: &Cqe) {
    probe_fields!(
        process_completion, [], std::ptr::from_ref(cqe) => Cqe,
        wr_id, status, opcode, qp_num, byte_len
    );
}

/// A request fails, and its completion enters the CQ. `vendor_err` tells what found the failure
/// (ferroverbs-soft(7)).
#[cold]
pub(crate) fn completion_error(cqe: &Cqe) {
    let Cqe { wr_id, status, opcode, qp_num, vendor_err, .. } = *cqe;
    probe!(rdma_core_soft, completion_error, wr_id, status, opcode, qp_num, vendor_err);
}

/// A QP changed its state. `dest_qp_num` is 0 before the QP is connected, and for a QP of another
/// host.
#[inline]
pub(crate) fn qp_state(qp_num: u32, state: u8, dest_qp_num: u32) {
    probe!(rdma_core_soft, qp_state, qp_num, state, dest_qp_num);
}
