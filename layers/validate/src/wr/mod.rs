//! QP-01, QP-08, QP-12, WR-01 to WR-18, OB-05: the checks of posting, and the requests in flight.
//!
//! | | |
//! |---|---|
//! | `request` | a request, and what is said of one |
//! | `check` | what may be wrong with a send request |
//! | `flight` | requests in flight |
//! | `list` | lists of requests |
//! | `send`, `receive` | the calls that post |

mod check;
mod flight;
mod list;
mod receive;
mod request;
mod send;

pub(crate) use check::{check_send, check_send_state, reads_memory};
pub(crate) use flight::{bind_failed, bind_starts, check_ah_in_flight, push, take_back};
pub(crate) use request::{RECEIVE, SendRequest, what};
pub(crate) use send::not_posted;
