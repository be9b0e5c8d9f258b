//! Versioned symbols.
//!
//! rustc can neither put `@` into an exported name nor combine its own list with named nodes under every
//! linker, so nothing of ours is `no_mangle`. Each row of an export table becomes a trampoline in assembly
//! (one direct jump) and a `.symver` directive that renames it to `name@node` and removes the plain name.
//! The build script passes the version map ([`crate::version_map`]) and the SONAME to the linker. Assembler
//! and map agree because both come from the very same rows.
//!
//! All rows of a library must end up in one object, so they stand in one module.

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

/// One symbol: `export!("name" "@@" "node" path::of::function)`.
#[macro_export]
macro_rules! export {
    ($name:literal $at:literal $node:literal $func:path) => {
        core::arch::global_asm!(
            ".text",
            concat!(".globl fv.", $name, ".", $node),
            concat!(".type fv.", $name, ".", $node, ", %function"),
            concat!("fv.", $name, ".", $node, ":"),
            $crate::jump!(),
            concat!(".size fv.", $name, ".", $node, ", . - fv.", $name, ".", $node),
            concat!(".symver fv.", $name, ".", $node, ", ", $name, $at, $node, ", remove"),
            function = sym $func,
        );
    };
}

/// Turns rows into symbols: `"name" "@@" "node" => function;`, or `"name" since N => function;` for a function
/// of the private ABI. The second kind needs `since!` of [`crate::version_map::Nodes::macros`] in scope.
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
