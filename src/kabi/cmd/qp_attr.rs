//! QP attributes between the application's form (`ibv_modify_qp(3)`) and the kernel's
//! (`ib_uverbs_modify_qp`, `ib_uverbs_query_qp_resp` of `<rdma/ib_user_verbs.h>`).

use core::mem::offset_of;

use abi::{
    QpAttrMask, Zeroed, ib_uverbs_modify_qp, ib_uverbs_qp_dest, ib_uverbs_query_qp_resp,
    ibv_ah_attr, ibv_gid, ibv_qp_attr, ibv_qp_cap,
};

/// Bytes of the attributes in every release: the structure of a caller of old ends before
/// `rate_limit`.
const COMMON: usize = offset_of!(ibv_qp_attr, rate_limit);

/// A copy of an application's attributes, `rate_limit` being among them if `mask` selects it.
///
/// # Safety
/// `attr` is readable, up to `rate_limit` or, if `mask` selects that, with it.
pub(super) unsafe fn read(attr: *const ibv_qp_attr, mask: QpAttrMask) -> ibv_qp_attr {
    let mut copy = ibv_qp_attr::zeroed();
    // SAFETY: readable so far by the contract; the copy is as long, and elsewhere.
    unsafe { attr.cast::<u8>().copy_to_nonoverlapping((&raw mut copy).cast(), COMMON) };
    if mask.contains(QpAttrMask::RATE_LIMIT) {
        // SAFETY: readable by the contract.
        copy.rate_limit = unsafe { (*attr).rate_limit };
    }
    copy
}

/// Stores the members that `mask` selects; all others stay as they are.
pub(super) fn to_kernel(attr: &ibv_qp_attr, mask: QpAttrMask, to: &mut ib_uverbs_modify_qp) {
    let has = |bit: QpAttrMask| mask.contains(bit);
    if has(QpAttrMask::STATE) {
        to.qp_state = byte(attr.qp_state);
    }
    if has(QpAttrMask::CUR_STATE) {
        to.cur_qp_state = byte(attr.cur_qp_state);
    }
    if has(QpAttrMask::EN_SQD_ASYNC_NOTIFY) {
        to.en_sqd_async_notify = attr.en_sqd_async_notify;
    }
    if has(QpAttrMask::ACCESS_FLAGS) {
        to.qp_access_flags = attr.qp_access_flags;
    }
    if has(QpAttrMask::PKEY_INDEX) {
        to.pkey_index = attr.pkey_index;
    }
    if has(QpAttrMask::PORT) {
        to.port_num = attr.port_num;
    }
    if has(QpAttrMask::QKEY) {
        to.qkey = attr.qkey;
    }
    if has(QpAttrMask::AV) {
        address_to_kernel(&attr.ah_attr, &mut to.dest);
    }
    if has(QpAttrMask::PATH_MTU) {
        to.path_mtu = byte(attr.path_mtu);
    }
    if has(QpAttrMask::TIMEOUT) {
        to.timeout = attr.timeout;
    }
    if has(QpAttrMask::RETRY_CNT) {
        to.retry_cnt = attr.retry_cnt;
    }
    if has(QpAttrMask::RNR_RETRY) {
        to.rnr_retry = attr.rnr_retry;
    }
    if has(QpAttrMask::RQ_PSN) {
        to.rq_psn = attr.rq_psn;
    }
    if has(QpAttrMask::MAX_QP_RD_ATOMIC) {
        to.max_rd_atomic = attr.max_rd_atomic;
    }
    if has(QpAttrMask::ALT_PATH) {
        to.alt_pkey_index = attr.alt_pkey_index;
        to.alt_port_num = attr.alt_port_num;
        to.alt_timeout = attr.alt_timeout;
        address_to_kernel(&attr.alt_ah_attr, &mut to.alt_dest);
    }
    if has(QpAttrMask::MIN_RNR_TIMER) {
        to.min_rnr_timer = attr.min_rnr_timer;
    }
    if has(QpAttrMask::SQ_PSN) {
        to.sq_psn = attr.sq_psn;
    }
    if has(QpAttrMask::MAX_DEST_RD_ATOMIC) {
        to.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    }
    if has(QpAttrMask::PATH_MIG_STATE) {
        to.path_mig_state = byte(attr.path_mig_state);
    }
    if has(QpAttrMask::DEST_QPN) {
        to.dest_qp_num = attr.dest_qp_num;
    }
}

fn address_to_kernel(from: &ibv_ah_attr, to: &mut ib_uverbs_qp_dest) {
    to.dgid = from.grh.dgid.bytes();
    to.flow_label = from.grh.flow_label;
    to.sgid_index = from.grh.sgid_index;
    to.hop_limit = from.grh.hop_limit;
    to.traffic_class = from.grh.traffic_class;
    to.dlid = from.dlid;
    to.sl = from.sl;
    to.src_path_bits = from.src_path_bits;
    to.static_rate = from.static_rate;
    to.is_global = from.is_global;
    to.port_num = from.port_num;
    to.reserved = 0;
}

/// Stores the attributes that the kernel tells; all others stay as they are.
///
/// # Safety
/// `attr` can be written, as far as a caller has it whose structure ends before `rate_limit`.
pub(super) unsafe fn from_kernel(from: &ib_uverbs_query_qp_resp, attr: *mut ibv_qp_attr) {
    // SAFETY: by the contract: none of these members is `rate_limit`, and there is no reference to
    // all of the structure.
    unsafe {
        (*attr).qp_state = from.qp_state.into();
        (*attr).cur_qp_state = from.cur_qp_state.into();
        (*attr).path_mtu = from.path_mtu.into();
        (*attr).path_mig_state = from.path_mig_state.into();
        (*attr).qkey = from.qkey;
        (*attr).rq_psn = from.rq_psn;
        (*attr).sq_psn = from.sq_psn;
        (*attr).dest_qp_num = from.dest_qp_num;
        (*attr).qp_access_flags = from.qp_access_flags;
        (*attr).cap = capacities(from);
        address_from_kernel(&from.dest, &mut (*attr).ah_attr);
        address_from_kernel(&from.alt_dest, &mut (*attr).alt_ah_attr);
        (*attr).pkey_index = from.pkey_index;
        (*attr).alt_pkey_index = from.alt_pkey_index;
        (*attr).sq_draining = from.sq_draining;
        (*attr).max_rd_atomic = from.max_rd_atomic;
        (*attr).max_dest_rd_atomic = from.max_dest_rd_atomic;
        (*attr).min_rnr_timer = from.min_rnr_timer;
        (*attr).port_num = from.port_num;
        (*attr).timeout = from.timeout;
        (*attr).retry_cnt = from.retry_cnt;
        (*attr).rnr_retry = from.rnr_retry;
        (*attr).alt_port_num = from.alt_port_num;
        (*attr).alt_timeout = from.alt_timeout;
    }
}

/// The capacities in a response.
pub(super) fn capacities(from: &ib_uverbs_query_qp_resp) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: from.max_send_wr,
        max_recv_wr: from.max_recv_wr,
        max_send_sge: from.max_send_sge,
        max_recv_sge: from.max_recv_sge,
        max_inline_data: from.max_inline_data,
    }
}

fn address_from_kernel(from: &ib_uverbs_qp_dest, attr: &mut ibv_ah_attr) {
    attr.grh.dgid = ibv_gid { raw: from.dgid };
    attr.grh.flow_label = from.flow_label;
    attr.grh.sgid_index = from.sgid_index;
    attr.grh.hop_limit = from.hop_limit;
    attr.grh.traffic_class = from.traffic_class;
    attr.dlid = from.dlid;
    attr.sl = from.sl;
    attr.src_path_bits = from.src_path_bits;
    attr.static_rate = from.static_rate;
    attr.is_global = from.is_global;
    attr.port_num = from.port_num;
}

/// The kernel's form of a small enumeration.
fn byte(value: u32) -> u8 {
    value as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The structure of a caller of old, with `page` behind it, which nobody may touch.
    fn at_the_end_of(page: *mut u8) -> *mut ibv_qp_attr {
        page.wrapping_sub(COMMON).cast()
    }

    #[test]
    fn behind_the_attributes_of_an_older_caller_nothing_is_touched() {
        let size = cface::mem::page_size();
        // SAFETY: two pages at an address of the kernel's choice; the second one is then closed.
        let page = unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let two = libc::mmap(core::ptr::null_mut(), 2 * size, rights, flags, -1, 0);
            assert_ne!(two, libc::MAP_FAILED);
            let page = two.byte_add(size);
            assert_eq!(libc::mprotect(page, size, libc::PROT_NONE), 0);
            page.cast::<u8>()
        };
        let attr = at_the_end_of(page);
        let mut response = ib_uverbs_query_qp_resp::zeroed();
        response.alt_timeout = 7;
        // SAFETY: as much as an older caller has.
        let copy = unsafe {
            from_kernel(&response, attr);
            read(attr, QpAttrMask::STATE)
        };
        assert_eq!((copy.alt_timeout, copy.rate_limit), (7, 0));
        let whole = ibv_qp_attr { rate_limit: 5, ..ibv_qp_attr::zeroed() };
        // SAFETY: a structure of today.
        assert_eq!(unsafe { read(&raw const whole, QpAttrMask::RATE_LIMIT) }.rate_limit, 5);
        // SAFETY: mapped above, and used no more.
        unsafe { libc::munmap(page.byte_sub(size).cast(), 2 * size) };
    }

    #[test]
    fn only_selected_members_are_stored() {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = 2;
        attr.qkey = 7;
        attr.ah_attr.dlid = 3;
        let mut to = ib_uverbs_modify_qp::zeroed();
        to.qkey = 9;
        to.dest.dlid = 11;
        to_kernel(&attr, QpAttrMask::STATE, &mut to);
        assert_eq!((to.qp_state, to.qkey, to.dest.dlid), (2, 9, 11));
        to_kernel(&attr, QpAttrMask::QKEY | QpAttrMask::AV, &mut to);
        assert_eq!((to.qkey, to.dest.dlid), (7, 3));
    }
}
