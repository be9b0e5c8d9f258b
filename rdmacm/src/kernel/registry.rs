//! Whose an event is: the kernel names an id by a number that we gave it, or by its own. Both are looked up; one that is unknown is nobody's.

use super::multicast::Group;
use crate::anew::Anew;
use crate::id::Id;
use cface::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

#[derive(Default)]
struct Registry {
    /// By the address of the id, which the kernel has for it.
    ids: BTreeMap<u64, Weak<Id>>,
    /// By the kernel's name.
    handles: BTreeMap<u32, Weak<Id>>,
    groups: BTreeMap<u64, Weak<Group>>,
}

static REGISTRY: Anew<Mutex<Registry>> = Anew::new();

/// What the kernel calls an id in events.
pub(super) fn name_of(id: &Id) -> u64 {
    id.as_c() as u64
}

/// An id that the kernel has.
pub(super) fn add(id: &Arc<Id>, handle: u32) {
    let mut registry = REGISTRY.get().lock();
    registry.ids.insert(name_of(id), Arc::downgrade(id));
    registry.handles.insert(handle, Arc::downgrade(id));
}

/// The kernel has it no more: its name may become another one's.
pub(super) fn remove_handle(id: &Id, handle: u32) {
    let mut registry = REGISTRY.get().lock();
    let own = registry.handles.get(&handle).is_some_and(|known| std::ptr::eq(known.as_ptr(), id));
    if own {
        registry.handles.remove(&handle);
    }
}

/// An id ends.
pub(crate) fn forget(id: &Id) {
    if let Some(kernel) = &id.kernel {
        remove_handle(id, kernel.handle());
        REGISTRY.get().lock().ids.remove(&name_of(id));
    }
}

pub(super) fn by_name(name: u64) -> Option<Arc<Id>> {
    let known = REGISTRY.get().lock().ids.get(&name).cloned();
    known?.upgrade()
}

pub(super) fn by_handle(handle: u32) -> Option<Arc<Id>> {
    let known = REGISTRY.get().lock().handles.get(&handle).cloned();
    known?.upgrade()
}

/// A membership, and what the kernel calls it in events.
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
