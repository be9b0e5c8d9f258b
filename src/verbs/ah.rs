//! Address handles: `ibv_create_ah(3)`, `ibv_create_ah_from_wc(3)`. Creation from a completion also
//! derives the attributes of the handle from the received message.

use core::ffi::c_int;

use abi::{Zeroed, ibv_ah, ibv_ah_attr, ibv_context, ibv_grh, ibv_pd, ibv_wc};

use super::{context_of, op, open_context, verb};
use crate::front::context::Context;
use crate::front::refusal::Refusal;
use crate::front::{ah_from_wc, eth};
use cface::{Errno, MinusOne, Negative};

verb! {
    /// `ibv_create_ah(3)`.
    ///
    /// # Safety
    /// `pd` is NULL or live; `attr` is readable.
    pub(crate) fn create_ah as ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
        // SAFETY: `create` asks the same: a PD that is NULL or live, and readable attributes.
        unsafe { create(pd, attr) }
    }

    /// `ibv_destroy_ah(3)`.
    ///
    /// # Safety
    /// `ah` is NULL or live, and used no more after success.
    pub(crate) fn destroy_ah as ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
        // SAFETY: `ah` is NULL, which is refused, or live, and a live address handle has an open
        // context.
        let destroy = op!(unsafe { context_of(ah)? }, destroy_ah)?;
        // SAFETY: `destroy` is from the table of the handle's own context; the caller uses it no
        // more after success.
        Ok(unsafe { destroy(ah) })
    }

    /// `ibv_init_ah_from_wc(3)`: the address of who sent a datagram; 0 or -1.
    ///
    /// # Safety
    /// `context` is NULL or open; `wc` and `grh` are readable, `attr` is writable.
    pub(crate) fn init_ah_from_wc as ibv_init_ah_from_wc(
        context: *mut ibv_context,
        port_num: u8,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        attr: *mut ibv_ah_attr,
    ) -> MinusOne {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        // SAFETY: the caller's `wc` and `grh` are readable during this call; NULL is looked for
        // inside.
        let found = unsafe { reply_address(context, port_num, wc, grh)? };
        if attr.is_null() {
            return Err(Refusal::of_null(c"ah_attr"));
        }
        // SAFETY: `attr` is not NULL (checked above), so the caller's to be written.
        unsafe { *attr = found };
        Ok(MinusOne(0))
    }

    /// `ibv_create_ah_from_wc(3)`: an address handle back to who sent a datagram.
    ///
    /// # Safety
    /// `pd` is NULL or live; `wc` and `grh` are readable.
    pub(crate) fn create_ah_from_wc as ibv_create_ah_from_wc(
        pd: *mut ibv_pd,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        port_num: u8,
    ) -> *mut ibv_ah {
        // SAFETY: `pd` is NULL, which is refused, or live; the context stays open during the call.
        let context = unsafe { context_of(pd)? };
        // SAFETY: the caller's `wc` and `grh` are readable during this call; NULL is looked for
        // inside.
        let mut attr = unsafe { reply_address(context, port_num, wc, grh)? };
        // SAFETY: a live PD and attributes of ours.
        unsafe { create(pd, &raw mut attr) }
    }

    /// `ibv_resolve_eth_l2_from_gid`: the Ethernet address behind the destination GID, and the VLAN
    /// of the way there (0xffff without); 0 or a negative errno.
    ///
    /// # Errors
    /// `EINVAL`, `EHOSTUNREACH`, `ENETUNREACH`; of the GID table.
    ///
    /// # Safety
    /// `context` is NULL or open; `attr` is readable; `mac` is writable for 6 bytes; `vid` is NULL
    /// or writable.
    pub(crate) fn resolve_eth_l2_from_gid as ibv_resolve_eth_l2_from_gid(
        context: *mut ibv_context,
        attr: *const ibv_ah_attr,
        mac: *mut [u8; 6],
        vid: *mut u16,
    ) -> Negative<c_int> {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        // SAFETY: `attr` is NULL, which is refused, or the caller's, unchanged during the call.
        let attr = unsafe { attr.as_ref() }.ok_or(Refusal::of_null(c"attr"))?;
        if mac.is_null() {
            return Err(Refusal::of_null(c"eth_mac"));
        }
        let found = eth::resolve(context, attr).map_err(|error| match error {
            Errno::EPERM => {
                let remedy = c"choose an index below gid_tbl_len of the port";
                Refusal::new(error, c"attr->grh.sgid_index", c"is not in the GID table", remedy)
                    .with_value(u64::from(attr.grh.sgid_index))
            }
            Errno::EINVAL => {
                let remedy = c"choose the GID of an interface that is up";
                Refusal::new(error, c"attr->grh.sgid_index", c"names an address of no interface", remedy)
                    .with_value(u64::from(attr.grh.sgid_index))
            }
            other => Refusal::unexplained(other),
        })?;
        // SAFETY: `mac` is not NULL (checked above), and `vid` only used when it is not: the
        // caller's to be written.
        unsafe {
            *mac = found.mac;
            if !vid.is_null() {
                *vid = found.vlan.unwrap_or(NO_VLAN);
            }
        }
        Ok(Negative(0))
    }
}

/// The value for "no VLAN".
const NO_VLAN: u16 = 0xffff;

/// # Safety
/// `pd` is NULL or live; `attr` is readable.
unsafe fn create(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> Result<*mut ibv_ah, Refusal> {
    // SAFETY: `pd` is NULL, which is refused, or live; the context stays open during the call.
    let context = unsafe { context_of(pd)? };
    let create = op!(context, create_ah)?;
    // SAFETY: `create` is from the table of the PD's own context; `attr` is the caller's, and
    // readable.
    let ah = unsafe { create(pd, attr) };
    if !ah.is_null() {
        // SAFETY: fresh and only ours.
        unsafe {
            (*ah).context = context.as_ptr();
            (*ah).pd = pd;
        }
    }
    Ok(ah)
}

/// # Safety
/// `wc` is readable, `grh` NULL or readable.
unsafe fn reply_address(
    context: Context,
    port_num: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
) -> Result<ibv_ah_attr, Refusal> {
    // SAFETY: `wc` is NULL, which is refused, or a completion that the caller does not change
    // meanwhile.
    let wc = unsafe { wc.as_ref() }.ok_or(Refusal::of_null(c"wc"))?;
    let mut attr = ibv_ah_attr::zeroed();
    attr.dlid = wc.slid;
    attr.sl = wc.sl;
    attr.src_path_bits = wc.dlid_path_bits;
    attr.port_num = port_num;
    let global = wc.wc_flags & abi::IBV_WC_GRH != 0;
    if !grh.is_null() {
        // SAFETY: the first 40 bytes of the receive buffer, readable by the contract above.
        let header: [u8; size_of::<ibv_grh>()] = unsafe { grh.cast::<[u8; 40]>().read_unaligned() };
        attr.grh.flow_label = ah_from_wc::flow_label(&header);
        if global {
            ah_from_wc::global_part(context, port_num, &header, &mut attr).map_err(|error| {
                let remedy = c"pass the first 40 bytes of the receive buffer of this completion, unchanged, and the port that received it";
                Refusal::new(error, c"grh", c"has no address of this port, or no IP header", remedy)
            })?;
        }
    } else if global {
        let remedy = c"pass the first 40 bytes of the receive buffer: wc_flags has IBV_WC_GRH";
        return Err(Refusal::new(Errno::EINVAL, c"grh", c"is NULL", remedy));
    }
    Ok(attr)
}
