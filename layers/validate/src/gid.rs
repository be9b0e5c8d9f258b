//! QP-06 and QP-07: checks of the GIDs in an address. QP-06 checks the source GID, QP-07 whether
//! the families of both GIDs agree. The GID table is no operation of a device, so the layer asks
//! libibverbs.

use core::ffi::{CStr, c_void};
use core::net::Ipv6Addr;
use std::sync::OnceLock;

use abi::{
    IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET, Zeroed, ibv_ah_attr,
    ibv_context, ibv_gid_entry,
};

use crate::checks::Id;
use crate::report::{Message, emit, wanted};
use crate::state::{Ctx, Qp};

type Query =
    unsafe extern "C" fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> i32;

/// An entry of a port's GID table; `None` if the entry is empty or cannot be read.
fn entry(ctx: &Ctx, port: u8, index: u8) -> Option<ibv_gid_entry> {
    static QUERY: OnceLock<Option<Query>> = OnceLock::new();
    const LIBRARY: &CStr = c"libibverbs.so.1";
    const NAME: &CStr = c"_ibv_query_gid_ex";
    let query = QUERY.get_or_init(|| {
        // SAFETY: the names end with a NUL, and RTLD_NOLOAD loads nothing. A program that opened
        // the library with dlopen(3) does not have its names in the global scope.
        let found = unsafe {
            match libc::dlsym(libc::RTLD_DEFAULT, NAME.as_ptr()) {
                none if none.is_null() => {
                    let library =
                        libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                    if library.is_null() { none } else { libc::dlsym(library, NAME.as_ptr()) }
                }
                found => found,
            }
        };
        // SAFETY: the result is NULL, or the function of ibv_query_gid_ex(3) with this prototype.
        unsafe { core::mem::transmute::<*mut c_void, Option<Query>>(found) }
    });
    let mut entry = ibv_gid_entry::zeroed();
    let context = core::ptr::with_exposed_provenance_mut(ctx.at);
    // SAFETY: the context is open, and the entry has the size that is passed.
    let result = unsafe {
        (*query)?(context, port.into(), index.into(), &raw mut entry, 0, size_of::<ibv_gid_entry>())
    };
    (result == 0).then_some(entry)
}

/// The address family of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

fn family(address: Ipv6Addr) -> Family {
    if address.to_ipv4_mapped().is_some() { Family::V4 } else { Family::V6 }
}

/// The defect of a source GID.
fn defect(entry: Option<&ibv_gid_entry>) -> Option<String> {
    let Some(entry) = entry else { return Some("is empty".into()) };
    let address = Ipv6Addr::from(entry.gid.bytes());
    if address.is_unspecified() {
        Some("is empty".into())
    } else if entry.gid_type == IBV_GID_TYPE_ROCE_V1 {
        Some(format!("is of RoCE v1, {address}: no router passes it on"))
    } else if address.is_unicast_link_local() {
        Some(format!("is link-local, {address}: no router passes it on, and peers may have none"))
    } else {
        None
    }
}

/// Whether an entry of a port's GID table is empty.
pub(crate) fn is_empty(ctx: &Ctx, port: u8, index: u8) -> bool {
    entry(ctx, port, index).is_none_or(|entry| Ipv6Addr::from(entry.gid.bytes()).is_unspecified())
}

/// The text for an entry that would be suitable.
fn better(ctx: &Ctx, port: u8, wanted: Option<Family>) -> Option<String> {
    let length = ctx.port(port)?.gid_tbl_len.clamp(0, 256);
    (0..length).map(|index| index as u8).find_map(|index| {
        let entry = entry(ctx, port, index)?;
        let address = Ipv6Addr::from(entry.gid.bytes());
        let fits = defect(Some(&entry)).is_none()
            && entry.gid_type == IBV_GID_TYPE_ROCE_V2
            && wanted.is_none_or(|wanted| wanted == family(address));
        fits.then(|| format!("sgid_index {index} is {address}"))
    })
}

/// Checks an address. Returns whether the message reports what an adapter refuses.
pub(crate) fn check(
    call: &'static str,
    object: &str,
    ctx: &Ctx,
    port: u8,
    address: &ibv_ah_attr,
    qp: Option<&Qp>,
) -> bool {
    let is_ethernet =
        ctx.port(port).is_some_and(|port| u32::from(port.link_layer) == IBV_LINK_LAYER_ETHERNET);
    if !is_ethernet || address.is_global == 0 || !(wanted(Id::Qp06) || wanted(Id::Qp07)) {
        return false;
    }
    let index = address.grh.sgid_index;
    // QP-03 reports an index beyond the table.
    if ctx.port(port).is_none_or(|known| i32::from(index) >= known.gid_tbl_len) {
        return false;
    }
    let say = |id, text: String, wanted: Option<Family>| {
        let remedy = match better(ctx, port, wanted) {
            Some(better) => format!("{better}; ibv_devinfo -v shows all there are"),
            None => "the port has no better one: give its network device an address".into(),
        };
        let object = object.to_owned();
        emit(&Message { id, call, object, text, remedy, also: None }, qp);
    };
    let from = entry(ctx, port, index);
    if wanted(Id::Qp06)
        && let Some(defect) = defect(from.as_ref())
    {
        say(Id::Qp06, format!("sgid_index {index} {defect}"), None);
        // Entries with another defect reach some peers.
        if from.is_none() {
            return true;
        }
    }
    let (Some(from), true) = (from, wanted(Id::Qp07)) else { return false };
    let (from, to) = (from.gid.bytes(), address.grh.dgid.bytes());
    let (from, to) = (Ipv6Addr::from(from), Ipv6Addr::from(to));
    // A multicast group has an IPv6 address for both families.
    let is_one = !to.is_unspecified() && !to.is_multicast();
    let differ = !from.is_unspecified() && is_one && family(from) != family(to);
    if differ {
        let text = format!(
            "{to} cannot be reached from sgid_index {index}, {from}: one is of IPv4, the other of IPv6"
        );
        say(Id::Qp07, text, Some(family(to)));
    }
    differ
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, gid_type: u32) -> ibv_gid_entry {
        let address: Ipv6Addr = text.parse().expect("an address");
        let gid = abi::ibv_gid { raw: address.octets() };
        ibv_gid_entry { gid, gid_type, ..ibv_gid_entry::zeroed() }
    }

    #[test]
    fn an_entry_is_told_of_if_it_leads_nowhere() {
        let defect = |text, kind| defect(Some(&of(text, kind))).is_some();
        assert!(defect("fe80::1", IBV_GID_TYPE_ROCE_V2));
        assert!(defect("::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V1));
        assert!(defect("::", IBV_GID_TYPE_ROCE_V2) && super::defect(None).is_some());
        assert!(!defect("::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V2));
        assert!(!defect("fd00::1", IBV_GID_TYPE_ROCE_V2));
    }

    #[test]
    fn families_are_those_of_addresses() {
        let family = |text: &str| family(text.parse().expect("an address"));
        assert_eq!(family("::ffff:10.0.0.1"), Family::V4);
        assert_eq!((family("fe80::1"), family("fd00::1")), (Family::V6, Family::V6));
    }
}
