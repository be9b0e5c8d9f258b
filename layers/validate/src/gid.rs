//! QP-06 and QP-07: the GIDs of an address, looked up in the port's table.

use core::net::Ipv6Addr;

use abi::{IBV_LINK_LAYER_ETHERNET, ibv_ah_attr};

use crate::checks::Id;
use crate::checks::address::{self, Family};
use crate::report::{About, is_enabled, report};
use crate::state::Ctx;

/// Whether an entry of a port's GID table is empty.
pub(crate) fn is_empty(ctx: &Ctx, port: u8, index: u8) -> bool {
    ctx.provider.gid(port, index).is_none_or(|entry| entry.address.is_unspecified())
}

/// The remedy: an entry that would be suitable.
fn better(ctx: &Ctx, port: u8, wanted: Option<Family>) -> String {
    let length = ctx.port(port).map_or(0, |port| port.gid_tbl_len.clamp(0, 256));
    let better = (0..length).map(|index| index as u8).find_map(|index| {
        let entry = ctx.provider.gid(port, index)?;
        address::is_suitable(&entry, wanted).then_some((index, entry))
    });
    address::remedy(better)
}

/// Checks an address. Returns whether the message reports what an adapter refuses.
pub(crate) fn check(
    call: &'static str,
    object: &str,
    ctx: &Ctx,
    port: u8,
    address: &ibv_ah_attr,
    qp: Option<About<'_>>,
) -> bool {
    let Some(known) = ctx.port(port) else { return false };
    let is_ethernet = u32::from(known.link_layer) == IBV_LINK_LAYER_ETHERNET;
    if !is_ethernet || address.is_global == 0 || !(is_enabled(Id::Qp06) || is_enabled(Id::Qp07)) {
        return false;
    }
    let index = address.grh.sgid_index;
    // QP-03 reports an index beyond the table.
    if i32::from(index) >= known.gid_tbl_len {
        return false;
    }
    let from = ctx.provider.gid(port, index);
    if is_enabled(Id::Qp06) {
        let found = address::source(index, from.as_ref(), || better(ctx, port, None));
        let is_found = found.is_some();
        report(call, || object.to_owned(), found, qp);
        // Entries with another defect reach some peers.
        if is_found && from.is_none() {
            return true;
        }
    }
    let (Some(from), true) = (from, is_enabled(Id::Qp07)) else { return false };
    let to = Ipv6Addr::from(address.grh.dgid.bytes());
    let found =
        address::families(index, from.address, to, |family| better(ctx, port, Some(family)));
    let differ = found.is_some();
    report(call, || object.to_owned(), found, qp);
    differ
}
