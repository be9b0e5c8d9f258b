//! What C sees: every symbol of `libibverbs.so.1` under its exact version node.
//!
//! rustc can neither put `@` into an exported name nor combine its own list with named nodes under every
//! linker, so nothing here is `no_mangle`. Each row of [`table`] becomes a trampoline in assembly (one
//! direct jump) and a `.symver` directive that renames it to `name@node` and removes the plain name;
//! `build.rs` passes the version map and the SONAME to the linker (rust-lld, rustc's default on x86_64
//! Linux). Assembler and map agree because `build.rs` reads the very same rows.
//!
//! The rows must end up in one object, which one module guarantees.

/// The trampoline's only instruction.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {function}"
    };
}
/// The trampoline's only instruction.
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {function}"
    };
}
pub(crate) use jump;

/// Turns rows into trampolines; see [`table`] for the grammar.
macro_rules! exports {
    (@one $name:literal $at:literal $node:literal $func:path) => {
        core::arch::global_asm!(
            ".text",
            concat!(".globl fv.", $name, ".", $node),
            concat!(".type fv.", $name, ".", $node, ", %function"),
            concat!("fv.", $name, ".", $node, ":"),
            $crate::export::jump!(),
            concat!(".size fv.", $name, ".", $node, ", . - fv.", $name, ".", $node),
            concat!(".symver fv.", $name, ".", $node, ", ", $name, $at, $node, ", remove"),
            function = sym $func,
        );
    };
    (@row $name:literal since 34 => $func:path) => {
        $crate::export::exports!(@one $name "@@" "IBVERBS_PRIVATE_34" $func);
        $crate::export::exports!(@one $name "@" "IBVERBS_PRIVATE_57" $func);
        $crate::export::exports!(@one $name "@" "IBVERBS_PRIVATE_59" $func);
        $crate::export::exports!(@one $name "@" "IBVERBS_PRIVATE_64" $func);
        $crate::export::exports!(@one $name "@" "IBVERBS_PRIVATE_65" $func);
    };
    (@row $name:literal since 59 => $func:path) => {
        $crate::export::exports!(@one $name "@@" "IBVERBS_PRIVATE_59" $func);
        $crate::export::exports!(@one $name "@" "IBVERBS_PRIVATE_64" $func);
        $crate::export::exports!(@one $name "@" "IBVERBS_PRIVATE_65" $func);
    };
    (@row $name:literal since 64 => $func:path) => {
        $crate::export::exports!(@one $name "@@" "IBVERBS_PRIVATE_64" $func);
        $crate::export::exports!(@one $name "@" "IBVERBS_PRIVATE_65" $func);
    };
    (@row $name:literal since 65 => $func:path) => {
        $crate::export::exports!(@one $name "@@" "IBVERBS_PRIVATE_65" $func);
    };
    (@row $name:literal $at:literal $node:literal => $func:path) => {
        $crate::export::exports!(@one $name $at $node $func);
    };
    ($($name:literal $word:tt $arg:tt => $func:path;)*) => {
        $($crate::export::exports!(@row $name $word $arg => $func);)*
    };
}
pub(crate) use exports;

mod compat10;
mod data;
mod table;
mod variadic;

pub(crate) use data::allow_disassociate_destroy;
