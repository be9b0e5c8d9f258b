//! Messages to the user on stderr. The software adapter reports broken settings and changed
//! interfaces with it.

/// Writes one line to stderr, with the library's name in front ([`cface::say!`]).
#[macro_export]
macro_rules! notice {
    ($($arg:tt)*) => {
        $crate::notice::line(::core::format_args!($($arg)*))
    };
}

/// The function behind [`notice!`].
pub fn line(text: core::fmt::Arguments<'_>) {
    cface::say!("libibverbs: soft: {text}");
}
