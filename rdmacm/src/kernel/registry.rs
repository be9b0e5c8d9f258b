//! The ids and groups of kernel events.
//! The kernel names an id by the library's number, or by its own handle. The event of an unknown
//! name is dropped.

use super::multicast::Group;
use crate::core::id::Id;
use crate::sys::process::PerProcess;
use cface::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

#[derive(Default)]
struct Registry {
    /// Ids by address, which is the library's name of an id.
    ids: BTreeMap<u64, Weak<Id>>,
    /// Ids by the kernel's handle.
    handles: BTreeMap<u32, Weak<Id>>,
    groups: BTreeMap<u64, Weak<Group>>,
}

static REGISTRY: PerProcess<Mutex<Registry>> = PerProcess::new();

/// The name of an id in events of the kernel.
pub(super) fn name_of(id: &Id) -> u64 {
    id.as_c() as u64
}

/// Adds an id that the kernel has.
pub(super) fn add(id: &Arc<Id>, handle: u32) {
    let mut registry = REGISTRY.get().lock();
    registry.ids.insert(name_of(id), Arc::downgrade(id));
    registry.handles.insert(handle, Arc::downgrade(id));
}

/// Removes a handle, which the kernel may give to another id afterwards.
pub(super) fn remove_handle(name: u64, handle: u32) {
    let mut registry = REGISTRY.get().lock();
    let own = registry.handles.get(&handle).is_some_and(|known| known.as_ptr() as u64 == name);
    if own {
        registry.handles.remove(&handle);
    }
}

/// Removes an id that ends.
pub(super) fn remove_id(name: u64, handle: u32) {
    remove_handle(name, handle);
    REGISTRY.get().lock().ids.remove(&name);
}

pub(super) fn by_name(name: u64) -> Option<Arc<Id>> {
    let known = REGISTRY.get().lock().ids.get(&name).cloned();
    known?.upgrade()
}

pub(super) fn by_handle(handle: u32) -> Option<Arc<Id>> {
    let known = REGISTRY.get().lock().handles.get(&handle).cloned();
    known?.upgrade()
}

/// Adds a membership; returns its name in events of the kernel.
pub(super) fn add_group(group: &Arc<Group>) -> u64 {
    let name = Arc::as_ptr(group) as u64;
    REGISTRY.get().lock().groups.insert(name, Arc::downgrade(group));
    name
}

pub(super) fn remove_group(name: u64) {
    REGISTRY.get().lock().groups.remove(&name);
}

pub(super) fn group(name: u64) -> Option<Arc<Group>> {
    let known = REGISTRY.get().lock().groups.get(&name).cloned();
    known?.upgrade()
}
