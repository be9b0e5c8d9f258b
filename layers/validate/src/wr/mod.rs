//! QP-01, QP-08, QP-12, WR-01 to WR-18, OB-05: the calls that post lists of requests.
//!
//! `list` follows the lists of the program, `send` and `receive` have the calls. `flights` checks
//! and records the requests.

mod list;
mod receive;
mod send;
