//! Address handles (ibv_create_ah(3)). Posts of UD QPs read the route of a handle; creation decides
//! whether the route leads to another host.

use super::pd::Pd;
use super::query::MAX_AH;
use super::state::Context;
use super::{object, status};
use crate::engine::adapter::Adapter;
use crate::host::unavailable::is_temporary;
use crate::net::{Gids, is_multicast, may_send_to};
use abi::*;
use soft_semantics::request::Route;
use soft_sys::Errno;
use std::ffi::c_int;

/// An address handle. The C object comes first.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Ah {
    verbs: ibv_ah,
    /// The global route, if given.
    pub(crate) route: Option<Route>,
    /// Whether the route leads to another host.
    pub(crate) elsewhere: bool,
}

impl Ah {
    /// # Safety
    /// `ah` is a live address handle of this provider.
    pub(crate) unsafe fn of<'a>(ah: *mut ibv_ah) -> &'a Self {
        // SAFETY: create_ah made the handle, and the C object is the first member.
        unsafe { &*ah.cast::<Self>() }
    }
}

/// Checks an address vector. Returns its route, and whether the route leads to another host. An
/// address without a global route means this host; a multicast group reaches the processes of this
/// host.
///
/// # Errors
/// `EINVAL` no such port or source GID; on a strict adapter also a missing global route, as on
/// every Ethernet port.
pub(super) fn resolve(
    adapter: &Adapter,
    gids: &Gids,
    attr: &ibv_ah_attr,
) -> Result<(Option<Route>, bool), Errno> {
    if attr.port_num != 1 {
        return Err(Errno::EINVAL);
    }
    if attr.is_global == 0 {
        return if adapter.identity.is_strict() { Err(Errno::EINVAL) } else { Ok((None, false)) };
    }
    let own = gids.get(usize::from(attr.grh.sgid_index)).ok_or(Errno::EINVAL)?;
    // SAFETY: both views of a GID are 16 plain bytes.
    let dgid = unsafe { attr.grh.dgid.raw };
    let route = Route {
        sgid: own.raw,
        dgid,
        flow_label: attr.grh.flow_label & 0xf_ffff,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
    };
    let is_here = || adapter.is_here(gids, &dgid) && !crate::host::is_wire_forced(&route);
    Ok((Some(route), !is_multicast(&dgid) && !is_here()))
}

/// ibv_create_ah(3): ENOMEM above the limit of the device.
///
/// # Safety
/// `pd` is a live protection domain of this provider; `attr` is readable.
pub(super) unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    object(|| {
        // SAFETY: `pd` is a live domain of this provider and `attr` is readable for the whole call;
        // both are only read.
        let (domain, context, attr) = unsafe { (Pd::of(pd), (*pd).context, &*attr) };
        // SAFETY: the context of a live domain is open.
        let gids = unsafe { Context::of(context) }.gids();
        let (route, elsewhere) = resolve(&domain.adapter, &gids, attr)?;
        if let (Some(route), true) = (&route, elsewhere) {
            let adapter = &domain.adapter;
            match adapter.ensure_wire_open() {
                Ok(()) if may_send_to(&route.dgid) => {}
                Err(why @ Errno::EADDRINUSE) => adapter.unreachable.note_wire(adapter, why),
                Err(why) if is_temporary(why) => return Err(why),
                _ => adapter.unreachable.note_address(adapter, &route.dgid),
            }
        }
        let held = domain.hold_for_object()?;
        domain.adapter.registry.address_handles().count_new(MAX_AH)?;
        held.keep_for_object();
        let verbs = ibv_ah { context, pd, handle: 0 };
        Ok(Box::into_raw(Box::new(Ah { verbs, route, elsewhere })).cast())
    })
}

/// ibv_destroy_ah(3).
///
/// # Safety
/// `ah` is a live address handle of this provider and is not used any more.
pub(super) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    status(|| {
        // SAFETY: made by create_ah and returned once; a handle holds its domain.
        unsafe {
            let ah = Box::from_raw(ah.cast::<Ah>());
            let domain = Pd::of(ah.verbs.pd);
            domain.adapter.registry.address_handles().give_back();
            domain.release();
        }
        Ok(())
    })
}
