//! The assembly routines of [`guard`](super). Each returns 0, or the address that faulted.
//!
//! The routines push nothing and call nothing, so the handler can end a routine at any instruction
//! by a return. A short copy loads all bytes before the first store, so overlaps do not matter. A
//! longer copy moves blocks of 64 bytes, and loads the rest before the first block.
//!
//! Map of this file: the routines of x86-64 with the choice of register width, those of aarch64,
//! and plain Rust for other targets, where a fault ends the program.

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
pub(super) use assembly::*;
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
pub(super) use plain::*;

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod assembly {
    #[cfg(target_arch = "x86_64")]
    use std::sync::atomic::{AtomicU8, Ordering};

    unsafe extern "C" {
        #[link_name = "ferroverbs_guard_copy"]
        pub(in super::super) fn copy(to: *mut u8, from: *const u8, len: usize) -> usize;
        #[link_name = "ferroverbs_guard_store"]
        pub(in super::super) fn store(to: *mut u64, value: u64) -> usize;
        #[link_name = "ferroverbs_guard_exchange"]
        pub(in super::super) fn compare_exchange(
            at: *mut u64,
            old: u64,
            new: u64,
            seen: *mut u64,
        ) -> usize;
        #[link_name = "ferroverbs_guard_begin"]
        pub(in super::super) static BEGIN: u8;
        #[link_name = "ferroverbs_guard_end"]
        pub(in super::super) static END: u8;
    }

    #[cfg(target_arch = "x86_64")]
    std::arch::global_asm!(
        ".pushsection .text.ferroverbs_guard,\"ax\",@progbits",
        ".balign 64",
        ".hidden ferroverbs_guard_begin",
        ".globl ferroverbs_guard_begin",
        ".hidden ferroverbs_guard_end",
        ".globl ferroverbs_guard_end",
        ".hidden ferroverbs_guard_copy",
        ".globl ferroverbs_guard_copy",
        ".hidden ferroverbs_guard_store",
        ".globl ferroverbs_guard_store",
        ".hidden ferroverbs_guard_exchange",
        ".globl ferroverbs_guard_exchange",
        ".type ferroverbs_guard_copy,@function",
        ".type ferroverbs_guard_store,@function",
        ".type ferroverbs_guard_exchange,@function",
        "ferroverbs_guard_begin:",
        "ferroverbs_guard_copy:",
        ".cfi_startproc",
        "cmp rdx, 16",
        "jb 20f",
        "cmp rdx, 32",
        "ja 30f",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "movups [rdi + rdx - 16], xmm1",
        "xor eax, eax",
        "ret",
        // Less than 16.
        "20:",
        "cmp edx, 8",
        "jae 21f",
        "cmp edx, 4",
        "jae 22f",
        "cmp edx, 2",
        "jae 23f",
        "test edx, edx",
        "je 24f",
        "movzx eax, byte ptr [rsi]",
        "mov byte ptr [rdi], al",
        "24:",
        "xor eax, eax",
        "ret",
        "21:",
        "mov rax, [rsi]",
        "mov rcx, [rsi + rdx - 8]",
        "mov [rdi], rax",
        "mov [rdi + rdx - 8], rcx",
        "xor eax, eax",
        "ret",
        "22:",
        "mov eax, [rsi]",
        "mov ecx, [rsi + rdx - 4]",
        "mov [rdi], eax",
        "mov [rdi + rdx - 4], ecx",
        "xor eax, eax",
        "ret",
        "23:",
        "movzx eax, word ptr [rsi]",
        "movzx ecx, word ptr [rsi + rdx - 2]",
        "mov word ptr [rdi], ax",
        "mov word ptr [rdi + rdx - 2], cx",
        "xor eax, eax",
        "ret",
        // 33 to 64.
        "30:",
        "cmp rdx, 64",
        "ja 40f",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + rdx - 32]",
        "movups xmm3, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + rdx - 32], xmm2",
        "movups [rdi + rdx - 16], xmm3",
        "xor eax, eax",
        "ret",
        // More, backwards where the target begins inside the source.
        "40:",
        "mov rax, rdi",
        "sub rax, rsi",
        "cmp rax, rdx",
        "jb 60f",
        "cmp byte ptr [rip + {wide}], 0",
        "jne 45f",
        "cmp rdx, {long}",
        "jae 50f",
        "movups xmm4, [rsi + rdx - 64]",
        "movups xmm5, [rsi + rdx - 48]",
        "movups xmm6, [rsi + rdx - 32]",
        "movups xmm7, [rsi + rdx - 16]",
        "lea r8, [rdi + rdx - 64]",
        ".balign 16",
        "41:",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "add rsi, 64",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + 32], xmm2",
        "movups [rdi + 48], xmm3",
        "add rdi, 64",
        "cmp rdi, r8",
        "jb 41b",
        "movups [r8], xmm4",
        "movups [r8 + 16], xmm5",
        "movups [r8 + 32], xmm6",
        "movups [r8 + 48], xmm7",
        "xor eax, eax",
        "ret",
        // The same with wider registers.
        "45:",
        "cmp rdx, {long_for_wide}",
        "jae 50f",
        "vmovups ymm4, [rsi + rdx - 64]",
        "vmovups ymm5, [rsi + rdx - 32]",
        "lea r8, [rdi + rdx - 64]",
        ".balign 16",
        "46:",
        "vmovups ymm0, [rsi]",
        "vmovups ymm1, [rsi + 32]",
        "add rsi, 64",
        "vmovups [rdi], ymm0",
        "vmovups [rdi + 32], ymm1",
        "add rdi, 64",
        "cmp rdi, r8",
        "jb 46b",
        "vmovups [r8], ymm4",
        "vmovups [r8 + 32], ymm5",
        "vzeroupper",
        "xor eax, eax",
        "ret",
        "50:",
        "mov rcx, rdx",
        "rep movsb",
        "xor eax, eax",
        "ret",
        "60:",
        "movups xmm4, [rsi]",
        "movups xmm5, [rsi + 16]",
        "movups xmm6, [rsi + 32]",
        "movups xmm7, [rsi + 48]",
        "add rsi, rdx",
        "lea r9, [rdi + rdx]",
        "lea r8, [rdi + 64]",
        ".balign 16",
        "61:",
        "movups xmm0, [rsi - 16]",
        "movups xmm1, [rsi - 32]",
        "movups xmm2, [rsi - 48]",
        "movups xmm3, [rsi - 64]",
        "sub rsi, 64",
        "movups [r9 - 16], xmm0",
        "movups [r9 - 32], xmm1",
        "movups [r9 - 48], xmm2",
        "movups [r9 - 64], xmm3",
        "sub r9, 64",
        "cmp r9, r8",
        "ja 61b",
        "movups [rdi], xmm4",
        "movups [rdi + 16], xmm5",
        "movups [rdi + 32], xmm6",
        "movups [rdi + 48], xmm7",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
        "ferroverbs_guard_store:",
        ".cfi_startproc",
        "mov [rdi], rsi",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
        "ferroverbs_guard_exchange:",
        ".cfi_startproc",
        "mov rax, rsi",
        "lock cmpxchg [rdi], rdx",
        "mov [rcx], rax",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
        "ferroverbs_guard_end:",
        ".popsection",
        wide = sym WIDE,
        long = const LONG,
        long_for_wide = const LONG_FOR_WIDE,
    );

    /// 1 if the processor has AVX.
    #[cfg(target_arch = "x86_64")]
    static WIDE: AtomicU8 = AtomicU8::new(0);

    /// Chooses the widest registers of the processor.
    pub(in super::super) fn choose() {
        #[cfg(target_arch = "x86_64")]
        WIDE.store(u8::from(std::arch::is_x86_feature_detected!("avx")), Ordering::Relaxed);
    }

    /// From this length on, `rep movsb` is faster than blocks, because it does not read the lines
    /// that it fills.
    #[cfg(target_arch = "x86_64")]
    const LONG: usize = 1536;
    #[cfg(target_arch = "x86_64")]
    const LONG_FOR_WIDE: usize = 32768;

    #[cfg(target_arch = "aarch64")]
    std::arch::global_asm!(
        ".pushsection .text.ferroverbs_guard,\"ax\",@progbits",
        ".balign 64",
        ".hidden ferroverbs_guard_begin",
        ".globl ferroverbs_guard_begin",
        ".hidden ferroverbs_guard_end",
        ".globl ferroverbs_guard_end",
        ".hidden ferroverbs_guard_copy",
        ".globl ferroverbs_guard_copy",
        ".hidden ferroverbs_guard_store",
        ".globl ferroverbs_guard_store",
        ".hidden ferroverbs_guard_exchange",
        ".globl ferroverbs_guard_exchange",
        ".type ferroverbs_guard_copy,@function",
        ".type ferroverbs_guard_store,@function",
        ".type ferroverbs_guard_exchange,@function",
        "ferroverbs_guard_begin:",
        "ferroverbs_guard_copy:",
        ".cfi_startproc",
        "add x4, x1, x2",
        "add x5, x0, x2",
        "cmp x2, #16",
        "b.lo 20f",
        "cmp x2, #32",
        "b.hi 30f",
        "ldr q0, [x1]",
        "ldur q1, [x4, #-16]",
        "str q0, [x0]",
        "stur q1, [x5, #-16]",
        "mov x0, #0",
        "ret",
        // Less than 16.
        "20:",
        "tbz x2, #3, 21f",
        "ldr x6, [x1]",
        "ldur x7, [x4, #-8]",
        "str x6, [x0]",
        "stur x7, [x5, #-8]",
        "mov x0, #0",
        "ret",
        "21:",
        "tbz x2, #2, 22f",
        "ldr w6, [x1]",
        "ldur w7, [x4, #-4]",
        "str w6, [x0]",
        "stur w7, [x5, #-4]",
        "mov x0, #0",
        "ret",
        "22:",
        "tbz x2, #1, 23f",
        "ldrh w6, [x1]",
        "ldurh w7, [x4, #-2]",
        "strh w6, [x0]",
        "sturh w7, [x5, #-2]",
        "mov x0, #0",
        "ret",
        "23:",
        "cbz x2, 24f",
        "ldrb w6, [x1]",
        "strb w6, [x0]",
        "24:",
        "mov x0, #0",
        "ret",
        // 33 to 64.
        "30:",
        "cmp x2, #64",
        "b.hi 40f",
        "ldp q0, q1, [x1]",
        "ldp q2, q3, [x4, #-32]",
        "stp q0, q1, [x0]",
        "stp q2, q3, [x5, #-32]",
        "mov x0, #0",
        "ret",
        // More, backwards where the target begins inside the source.
        "40:",
        "sub x3, x0, x1",
        "cmp x3, x2",
        "b.lo 60f",
        "ldp q4, q5, [x4, #-64]",
        "ldp q6, q7, [x4, #-32]",
        "sub x6, x5, #64",
        "41:",
        "ldp q0, q1, [x1]",
        "ldp q2, q3, [x1, #32]",
        "add x1, x1, #64",
        "stp q0, q1, [x0]",
        "stp q2, q3, [x0, #32]",
        "add x0, x0, #64",
        "cmp x0, x6",
        "b.lo 41b",
        "stp q4, q5, [x6]",
        "stp q6, q7, [x6, #32]",
        "mov x0, #0",
        "ret",
        "60:",
        "ldp q4, q5, [x1]",
        "ldp q6, q7, [x1, #32]",
        "add x6, x0, #64",
        "61:",
        "ldp q0, q1, [x4, #-64]",
        "ldp q2, q3, [x4, #-32]",
        "sub x4, x4, #64",
        "stp q0, q1, [x5, #-64]",
        "stp q2, q3, [x5, #-32]",
        "sub x5, x5, #64",
        "cmp x5, x6",
        "b.hi 61b",
        "stp q4, q5, [x0]",
        "stp q6, q7, [x0, #32]",
        "mov x0, #0",
        "ret",
        ".cfi_endproc",
        "ferroverbs_guard_store:",
        ".cfi_startproc",
        "stlr x1, [x0]",
        "mov x0, #0",
        "ret",
        ".cfi_endproc",
        "ferroverbs_guard_exchange:",
        ".cfi_startproc",
        "70:",
        "ldaxr x4, [x0]",
        "cmp x4, x1",
        "b.ne 71f",
        "stlxr w5, x2, [x0]",
        "cbnz w5, 70b",
        "b 72f",
        "71:",
        "clrex",
        "72:",
        "str x4, [x3]",
        "mov x0, #0",
        "ret",
        ".cfi_endproc",
        "ferroverbs_guard_end:",
        ".popsection",
    );
}

/// Targets without routines: a fault ends the program.
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
mod plain {
    use std::sync::atomic::{AtomicU64, Ordering};

    pub(in super::super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
        // SAFETY: the contract of `super::super::copy`.
        unsafe { std::ptr::copy(from, to, len) };
        0
    }

    pub(in super::super) unsafe fn store(to: *mut u64, value: u64) -> usize {
        // SAFETY: the contract of `super::super::store`.
        unsafe { AtomicU64::from_ptr(to) }.store(value, Ordering::Release);
        0
    }

    pub(in super::super) unsafe fn compare_exchange(
        at: *mut u64,
        old: u64,
        new: u64,
        seen: *mut u64,
    ) -> usize {
        // SAFETY: the contract of `super::super::compare_exchange`.
        let at = unsafe { AtomicU64::from_ptr(at) };
        let found = at.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
        // SAFETY: a word of the caller.
        unsafe { seen.write(found.unwrap_or_else(|found| found)) };
        0
    }
}
