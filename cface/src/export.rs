//! Versioned symbols of the shared libraries: from rows of an export table to assembler directives.
//!
//! rustc cannot put `@` into an exported name, so no exported function is `no_mangle`. Each row of
//! an export table becomes a trampoline in assembly (one direct jump). A `.symver` directive
//! renames the trampoline to `name@node` and removes the plain name. The build script gives the
//! version map ([`crate::version_map`]) to the linker ([`crate::version_script`]). Assembler and
//! map agree because both come from the same rows.
//!
//! All rows of a library must be in one object file, hence in one module.

/// The trampoline's only instruction.
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
#[macro_export]
macro_rules! jump {
    () => {
        "jmp {function}"
    };
}

/// The trampoline's only instruction.
#[cfg(target_arch = "aarch64")]
#[doc(hidden)]
#[macro_export]
macro_rules! jump {
    () => {
        "b {function}"
    };
}

/// The trampoline of a call through a table: one instruction, a jump to the entry's address.
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
#[macro_export]
macro_rules! jump_through {
    () => {
        "jmp qword ptr [rip + {table} + {offset}]"
    };
}

/// The trampoline of a call that goes by a table. Callers expect nothing of x16.
#[cfg(target_arch = "aarch64")]
#[doc(hidden)]
#[macro_export]
macro_rules! jump_through {
    () => {
        "adrp x16, {table}+{offset}\nldr x16, [x16, :lo12:{table}+{offset}]\nbr x16"
    };
}

/// One symbol: `export!("name" "@@" "node" path::of::function)`.
#[macro_export]
macro_rules! export {
    ($name:literal $at:literal $node:literal $func:path) => {
        $crate::export!(@symbol $name $at $node ($crate::jump!()) function = sym $func);
    };
    (@symbol $name:literal $at:literal $node:literal ($jump:expr) $($operand:tt)+) => {
        core::arch::global_asm!(
            ".text",
            concat!(".globl fv.", $name, ".", $node),
            concat!(".type fv.", $name, ".", $node, ", %function"),
            concat!("fv.", $name, ".", $node, ":"),
            $jump,
            concat!(".size fv.", $name, ".", $node, ", . - fv.", $name, ".", $node),
            concat!(".symver fv.", $name, ".", $node, ", ", $name, $at, $node, ", remove"),
            $($operand)+
        );
    };
}

/// As [`exports!`](crate::exports), for symbols that call through a table of function pointers: the
/// table, its type, and rows with the table's member.
#[macro_export]
macro_rules! exports_through {
    ($table:path, $type:ty; $($name:literal $at:literal $node:literal => $member:ident;)*) => {$(
        $crate::export!(@symbol $name $at $node ($crate::jump_through!())
            table = sym $table, offset = const core::mem::offset_of!($type, $member));
    )*};
}

/// Turns rows into symbols: `"name" "@@" "node" => function;`, or `"name" since N => function;` for
/// a function of the private ABI. The second kind needs `since!` of
/// [`crate::version_map::Nodes::macros`] in scope.
#[macro_export]
macro_rules! exports {
    (@row $name:literal since $first:tt => $func:path) => {
        since!($first $name $func);
    };
    (@row $name:literal $at:literal $node:literal => $func:path) => {
        $crate::export!($name $at $node $func);
    };
    ($($name:literal $word:tt $arg:tt => $func:path;)*) => {
        $($crate::exports!(@row $name $word $arg => $func);)*
    };
}
