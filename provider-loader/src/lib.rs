//! Finds and loads provider plugins of rdma-core's verbs stack, and explains failures.
//! `Loader::new(&places)` takes the directories in order, and `load("mlx5")` opens a plugin or
//! returns a [`LoadFailure`] of one line.
//!
//! - [`config`]: which drivers the administrator enabled (`/etc/libibverbs.d`, one `driver NAME`
//!   per line).
//! - [`places`]: directories of configuration and plugins, first those relative to the library.
//! - [`layers`]: the shared objects named by `FERROVERBS_LAYERS`.
//! - [`Loader`]: opens a plugin, trying each place and each generation of the private ABI in order,
//!   and explains in one line why none opens.
//!
//! The crate prints no messages; the caller decides whether a [`LoadFailure`] matters.

pub mod config;
mod dl;
mod elf;
mod failure;
pub mod layers;
mod loader;
pub mod places;

pub use dl::Plugin;
pub use failure::{LoadFailure, SearchResult};
pub use loader::Loader;

/// Entry points of fuzz targets: all accept any bytes and must not panic.
#[cfg(debug_assertions)]
#[doc(hidden)]
pub mod fuzzing {
    use std::path::Path;

    /// A `*.driver` file.
    pub fn driver_file(data: &[u8]) {
        let mut contents = crate::config::ConfigFolder::default();
        crate::config::parse(Path::new("x.driver"), &String::from_utf8_lossy(data), &mut contents);
        for directive in &contents.directives {
            assert!(
                !directive.name.is_empty() && !directive.name.contains(crate::config::is_blank)
            );
        }
        for ignored in &contents.ignored {
            assert!(!ignored.to_string().contains('\n'), "one line for a person");
        }
        crate::config::split_list(&String::from_utf8_lossy(data));
    }

    /// A plugin's file: an accepted file is at least as long as its program headers say.
    pub fn plugin_file(data: &[u8]) {
        let _ = crate::elf::check_file(&mut std::io::Cursor::new(data), data.len() as u64);
    }
}
