//! Lines for people, on stderr.

use std::fmt::Arguments;
use std::io::Write;

/// One line on stderr, with the library's name in front, in one piece: processes of a job often share stderr, and
/// tell of the same thing at once. A stderr that takes nothing is no reason to fail (`eprintln!` would panic).
#[macro_export]
macro_rules! notice {
    ($($arg:tt)*) => {
        $crate::notice::write_line(&mut ::std::io::stderr(), ::core::format_args!($($arg)*))
    };
}

/// Behind [`notice!`].
pub fn write_line(to: &mut impl Write, text: Arguments<'_>) {
    let _whole = cface::cancel::Uncancelled::begin();
    let _ = to.write_all(format!("libibverbs: soft: {text}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[derive(Default)]
    struct Pieces(Vec<Vec<u8>>);

    impl Write for Pieces {
        fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
            self.0.push(piece.to_vec());
            Ok(piece.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_written_in_one_piece() {
        let mut pieces = Pieces::default();
        write_line(&mut pieces, format_args!("{}: {}", "/tmp/fabric", "not there"));
        assert_eq!(pieces.0, [b"libibverbs: soft: /tmp/fabric: not there\n"]);
    }
}
