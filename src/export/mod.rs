//! The exported symbols of `libibverbs.so.1`, each under its exact version node
//! ([`cface::exports`]).
//!
//! `build.rs` writes the version map from the rows of [`table`], and the two macros with the
//! numbers of the generations. Any linker takes the map ([`cface::version_script`]).

include!(concat!(env!("OUT_DIR"), "/generations.rs"));

mod compat10;
mod data;
mod table;
mod variadic;
