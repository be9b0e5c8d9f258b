//! Memory of applications by key: what lkeys and rkeys permit, and the end of a key.
//!
//! | file | content |
//! |---|---|
//! | `regions`, `windows` | memory regions and memory windows |
//! | `domains` | protection domains |
//! | `imported` | regions of other processes (ibv_import_mr(3)) |
//! | `access` | remote access by rkey |
//! | `in_flight`, `key_users` | operations for which a deregistration waits |

pub(crate) mod access;
pub(crate) mod domains;
pub(crate) mod imported;
pub(crate) mod in_flight;
pub(crate) mod key_users;
pub(crate) mod regions;
pub(crate) mod windows;
