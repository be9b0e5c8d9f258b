//! Ids, event channels, devices and agents.
//! Entry points change ids here; agents turn MADs into events of ids.

pub(crate) mod agent;
pub(crate) mod arrivals;
pub(crate) mod c_objects;
pub(crate) mod channel;
pub(crate) mod device;
pub(crate) mod event_names;
pub(crate) mod id;
pub(crate) mod local_host;
pub(crate) mod path;
pub(crate) mod requests;
pub(crate) mod resolver;
pub(crate) mod route;
