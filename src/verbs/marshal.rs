//! Copies between the kernel's and the application's form of the same structures, for librdmacm:
//! `ibv_copy_ah_attr_from_kern`, `ibv_copy_qp_attr_from_kern`, `ibv_copy_path_rec_from_kern`,
//! `ibv_copy_path_rec_to_kern`. Nothing is byte-swapped. Both forms may lie in the same memory.

use core::ffi::c_int;

use abi::{
    ib_user_path_rec, ib_uverbs_ah_attr, ib_uverbs_qp_attr, ibv_ah_attr, ibv_gid, ibv_qp_attr,
    ibv_sa_path_rec,
};

use super::verb;
use crate::front::refusal::Refusal;

verb! {
    /// `ibv_copy_ah_attr_from_kern`.
    ///
    /// # Safety
    /// `to` is writable, `from` readable.
    pub(crate) fn ah_attr_from_kern as ibv_copy_ah_attr_from_kern(to: *mut ibv_ah_attr, from: *const ib_uverbs_ah_attr) {
        if to.is_null() || from.is_null() {
            return Err(Refusal::of_null(if to.is_null() { c"dst" } else { c"src" }));
        }
        // SAFETY: not NULL (checked above), so the caller's structure; a copy, as `to` may be the
        // same memory.
        let from = unsafe { from.read() };
        // SAFETY: not NULL (checked above), so the caller's to be written; `from` is elsewhere.
        unsafe { copy_ah_attr(&mut *to, &from) };
        Ok(())
    }

    /// `ibv_copy_qp_attr_from_kern`: `qp_state` stays as it is.
    ///
    /// # Safety
    /// `to` is writable, `from` readable.
    pub(crate) fn qp_attr_from_kern as ibv_copy_qp_attr_from_kern(to: *mut ibv_qp_attr, from: *const ib_uverbs_qp_attr) {
        if to.is_null() || from.is_null() {
            return Err(Refusal::of_null(if to.is_null() { c"dst" } else { c"src" }));
        }
        // SAFETY: not NULL (checked above), so the caller's structure; a copy, as `to` may be the
        // same memory.
        let from = unsafe { from.read() };
        // SAFETY: not NULL (checked above), so the caller's to be written: each of these members
        // exists in every release's structure, but not `rate_limit`, so no reference covers the
        // whole structure.
        unsafe {
            (*to).cur_qp_state = from.cur_qp_state;
            (*to).path_mtu = from.path_mtu;
            (*to).path_mig_state = from.path_mig_state;
            (*to).qkey = from.qkey;
            (*to).rq_psn = from.rq_psn;
            (*to).sq_psn = from.sq_psn;
            (*to).dest_qp_num = from.dest_qp_num;
            (*to).qp_access_flags = from.qp_access_flags;
            (*to).cap.max_send_wr = from.max_send_wr;
            (*to).cap.max_recv_wr = from.max_recv_wr;
            (*to).cap.max_send_sge = from.max_send_sge;
            (*to).cap.max_recv_sge = from.max_recv_sge;
            (*to).cap.max_inline_data = from.max_inline_data;
            copy_ah_attr(&mut (*to).ah_attr, &from.ah_attr);
            copy_ah_attr(&mut (*to).alt_ah_attr, &from.alt_ah_attr);
            (*to).pkey_index = from.pkey_index;
            (*to).alt_pkey_index = from.alt_pkey_index;
            (*to).en_sqd_async_notify = from.en_sqd_async_notify;
            (*to).sq_draining = from.sq_draining;
            (*to).max_rd_atomic = from.max_rd_atomic;
            (*to).max_dest_rd_atomic = from.max_dest_rd_atomic;
            (*to).min_rnr_timer = from.min_rnr_timer;
            (*to).port_num = from.port_num;
            (*to).timeout = from.timeout;
            (*to).retry_cnt = from.retry_cnt;
            (*to).rnr_retry = from.rnr_retry;
            (*to).alt_port_num = from.alt_port_num;
            (*to).alt_timeout = from.alt_timeout;
        }
        Ok(())
    }

    /// `ibv_copy_path_rec_from_kern`.
    ///
    /// # Safety
    /// `to` is writable, `from` readable.
    pub(crate) fn path_rec_from_kern as ibv_copy_path_rec_from_kern(to: *mut ibv_sa_path_rec, from: *const ib_user_path_rec) {
        if to.is_null() || from.is_null() {
            return Err(Refusal::of_null(if to.is_null() { c"dst" } else { c"src" }));
        }
        // SAFETY: not NULL (checked above), so the caller's structure; a copy, as `to` may be the
        // same memory.
        let from = unsafe { from.read() };
        // SAFETY: not NULL (checked above), so the caller's to be written; `from` is elsewhere.
        unsafe { (*to).assign(&from) };
        Ok(())
    }

    /// `ibv_copy_path_rec_to_kern`.
    ///
    /// # Safety
    /// `to` is writable, `from` readable.
    pub(crate) fn path_rec_to_kern as ibv_copy_path_rec_to_kern(to: *mut ib_user_path_rec, from: *const ibv_sa_path_rec) {
        if to.is_null() || from.is_null() {
            return Err(Refusal::of_null(if to.is_null() { c"dst" } else { c"src" }));
        }
        // SAFETY: not NULL (checked above), so the caller's structure; a copy, as `to` may be the
        // same memory.
        let from = unsafe { from.read() };
        let record = ib_user_path_rec {
            dgid: from.dgid.bytes(),
            sgid: from.sgid.bytes(),
            dlid: from.dlid,
            slid: from.slid,
            raw_traffic: c_int::cast_unsigned(from.raw_traffic),
            flow_label: from.flow_label,
            reversible: c_int::cast_unsigned(from.reversible),
            mtu: u32::from(from.mtu),
            pkey: from.pkey,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
            numb_path: from.numb_path,
            sl: from.sl,
            mtu_selector: from.mtu_selector,
            rate_selector: from.rate_selector,
            rate: from.rate,
            packet_life_time_selector: from.packet_life_time_selector,
            packet_life_time: from.packet_life_time,
            preference: from.preference,
        };
        // SAFETY: not NULL (checked above), so the caller's to be written.
        unsafe { to.write(record) };
        Ok(())
    }
}

fn copy_ah_attr(to: &mut ibv_ah_attr, from: &ib_uverbs_ah_attr) {
    to.grh.dgid = ibv_gid { raw: from.grh.dgid };
    to.grh.flow_label = from.grh.flow_label;
    to.grh.sgid_index = from.grh.sgid_index;
    to.grh.hop_limit = from.grh.hop_limit;
    to.grh.traffic_class = from.grh.traffic_class;
    to.dlid = from.dlid;
    to.sl = from.sl;
    to.src_path_bits = from.src_path_bits;
    to.static_rate = from.static_rate;
    to.is_global = from.is_global;
    to.port_num = from.port_num;
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::Zeroed;

    /// What `convert` makes of `bytes` in place, and elsewhere.
    fn both_ways<T: Copy, F>(
        bytes: &[u8; 256],
        convert: unsafe extern "C" fn(*mut T, *const F),
    ) -> [Vec<u8>; 2] {
        assert!(size_of::<T>() <= 256 && size_of::<F>() <= 256);
        [true, false].map(|in_place| {
            let words = |bytes: &[u8; 256]| -> [u64; 32] {
                core::array::from_fn(|n| {
                    u64::from_ne_bytes(core::array::from_fn(|i| bytes[n * 8 + i]))
                })
            };
            let (mut from, mut to) = (words(bytes), words(bytes));
            let to = if in_place { from.as_mut_ptr() } else { to.as_mut_ptr() };
            // SAFETY: both are memory of 256 bytes, enough for either form; `to` may be the same as
            // `from`.
            unsafe {
                convert(to.cast(), from.as_mut_ptr().cast_const().cast());
                core::slice::from_raw_parts(to.cast::<u8>(), size_of::<T>()).to_vec()
            }
        })
    }

    #[test]
    fn both_forms_of_a_structure_may_share_their_memory() {
        let bytes = core::array::from_fn(|index| (index * 7) as u8);
        let [here, there] = both_ways(&bytes, qp_attr_from_kern);
        assert_eq!(here, there);
        let [here, there] = both_ways(&bytes, ah_attr_from_kern);
        assert_eq!(here, there);
        let [here, there] = both_ways(&bytes, path_rec_from_kern);
        assert_eq!(here, there);
        let [here, there] = both_ways(&bytes, path_rec_to_kern);
        assert_eq!(here, there);
    }

    #[test]
    fn a_path_record_survives_the_way_to_the_kernel_and_back() {
        let bytes: [u8; size_of::<ib_user_path_rec>()] =
            core::array::from_fn(|index| index as u8 + 1);
        // SAFETY: 64 bytes without padding; every value is valid.
        let mut kernel: ib_user_path_rec = unsafe { core::mem::transmute(bytes) };
        kernel.mtu = 4;
        let (mut user, mut back) = (ibv_sa_path_rec::zeroed(), ib_user_path_rec::zeroed());
        // SAFETY: three structures of ours.
        unsafe {
            path_rec_from_kern(&raw mut user, &raw const kernel);
            path_rec_to_kern(&raw mut back, &raw const user);
        }
        assert_eq!(format!("{back:?}"), format!("{kernel:?}"));
    }

    #[test]
    fn the_state_of_a_qp_is_not_taken_from_the_kernel() {
        let mut kernel = ib_uverbs_qp_attr::zeroed();
        (kernel.qp_state, kernel.cur_qp_state, kernel.alt_ah_attr.dlid) = (3, 2, 7);
        let mut user = ibv_qp_attr::zeroed();
        // SAFETY: two structures of ours.
        unsafe { qp_attr_from_kern(&raw mut user, &raw const kernel) };
        assert_eq!((user.qp_state, user.cur_qp_state, user.alt_ah_attr.dlid), (0, 2, 7));
    }
}
