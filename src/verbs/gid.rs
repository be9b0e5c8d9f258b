//! GIDs and pkeys: `ibv_query_gid(3)`, `ibv_query_gid_ex(3)`, `ibv_query_gid_table(3)`,
//! `ibv_query_pkey(3)`, `ibv_get_pkey_index(3)`.

use core::ffi::{CStr, c_int};

use abi::{be16, ibv_context, ibv_gid, ibv_gid_entry, ibv_gid_type_sysfs};

use super::{op, open_context, verb};
use crate::front::gid;
use crate::front::refusal::Refusal;
use cface::{Errno, MinusOne, Negative};

verb! {
    /// `ibv_query_gid(3)`: 0 or -1; an empty slot is a zero GID.
    ///
    /// # Safety
    /// `context` is NULL or open; `gid` is writable.
    pub(crate) fn query_gid as ibv_query_gid(
        context: *mut ibv_context,
        port_num: u8,
        index: c_int,
        gid: *mut ibv_gid,
    ) -> MinusOne {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        // The owner of the table refuses a negative index.
        let index = index.cast_unsigned();
        if gid.is_null() {
            return Err(Refusal::of_null(c"gid"));
        }
        let found = gid::gid_or_zeros(context, u32::from(port_num), index)
            .map_err(|error| not_in_table(error, c"index", index))?;
        // SAFETY: `gid` is not NULL (checked above), so the caller's to be written.
        unsafe { *gid = found };
        Ok(MinusOne(0))
    }

    /// `_ibv_query_gid_ex`, behind the inline `ibv_query_gid_ex(3)`: 0 or an errno.
    ///
    /// # Errors
    /// `ENODATA` an empty slot; `EINVAL`; `EOPNOTSUPP` unknown flags.
    ///
    /// # Safety
    /// `context` is NULL or open; `entry` is writable for `entry_size` bytes.
    pub(crate) fn query_gid_ex as _ibv_query_gid_ex(
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        entry_size: usize,
    ) -> c_int {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        if entry.is_null() {
            return Err(Refusal::of_null(c"entry"));
        }
        let found = gid::entry(context, port_num, gid_index, flags, gid::WHOLE_ENTRY)
            .map_err(|error| not_in_table(error, c"gid_index", gid_index))?;
        // SAFETY: writable for `entry_size` bytes by the contract above.
        unsafe { store(entry, entry_size, &found) };
        Ok(0)
    }

    /// `_ibv_query_gid_table`, behind the inline `ibv_query_gid_table(3)`: the number of entries,
    /// or a negative errno.
    ///
    /// # Errors
    /// `EINVAL` more entries than `max_entries`.
    ///
    /// # Safety
    /// `context` is NULL or open; `entries` is writable for `max_entries` of `entry_size` bytes.
    pub(crate) fn query_gid_table as _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> Negative<isize> {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        if entries.is_null() && max_entries != 0 {
            return Err(Refusal::of_null(c"entries"));
        }
        let found = gid::table(context, max_entries, flags).map_err(|error| match error {
            Errno::EINVAL => {
                let remedy = c"pass room for the gid_tbl_len entries of all ports";
                Refusal::new(error, c"max_entries", c"is less than the device has", remedy)
                    .with_value(max_entries as u64)
            }
            other => Refusal::unexplained(other),
        })?;
        for (index, entry) in found.iter().enumerate() {
            // SAFETY: there are at most `max_entries`, each of `entry_size` bytes.
            unsafe { store(entries.wrapping_byte_add(index * entry_size), entry_size, entry) };
        }
        Ok(Negative(found.len().cast_signed()))
    }

    /// `ibv_query_gid_type` (driver side): 0 or -1; an empty slot has the oldest type.
    ///
    /// # Safety
    /// `context` is NULL or open; `gid_type` is writable.
    pub(crate) fn query_gid_type as ibv_query_gid_type(
        context: *mut ibv_context,
        port_num: u8,
        index: u32,
        gid_type: *mut ibv_gid_type_sysfs,
    ) -> MinusOne {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        let found = gid::type_as_sysfs(context, u32::from(port_num), index)
            .map_err(|error| not_in_table(error, c"index", index))?;
        if gid_type.is_null() {
            return Err(Refusal::of_null(c"gid_type"));
        }
        // SAFETY: `gid_type` is not NULL (checked above), so the caller's to be written.
        unsafe { *gid_type = found };
        Ok(MinusOne(0))
    }

    /// `ibv_query_pkey(3)`: 0 or -1.
    ///
    /// # Safety
    /// `context` is NULL or open; `pkey` is writable.
    pub(crate) fn query_pkey as ibv_query_pkey(
        context: *mut ibv_context,
        port_num: u8,
        index: c_int,
        pkey: *mut be16,
    ) -> MinusOne {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        if pkey.is_null() {
            return Err(Refusal::of_null(c"pkey"));
        }
        let found = gid::pkey(context, port_num, index)
            .map_err(|error| not_in_table(error, c"index", index.cast_unsigned()))?;
        // SAFETY: `pkey` is not NULL (checked above), so the caller's to be written.
        unsafe { *pkey = found };
        Ok(MinusOne(0))
    }

    /// `ibv_get_pkey_index(3)`: where a pkey (big endian) is, or -1.
    ///
    /// # Safety
    /// `context` is NULL or open.
    pub(crate) fn get_pkey_index as ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: be16) -> MinusOne {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        let absent = |error| {
            if !matches!(error, Errno::EINVAL | Errno::ENOENT) {
                return Refusal::unexplained(error);
            }
            let remedy = c"ask for a P_Key of the port, in network byte order, and a port of the device";
            Refusal::new(error, c"pkey", c"is not in the P_Key table of the port", remedy)
                .with_value(u64::from(u16::from_be(pkey)))
        };
        for index in 0..=c_int::from(u16::MAX) {
            if gid::pkey(context, port_num, index).map_err(absent)? == pkey {
                return Ok(MinusOne(index));
            }
        }
        Err(absent(Errno::EINVAL))
    }

    /// `ibv_query_port_speed(3)`: in units of 100 Mbit/s.
    ///
    /// # Safety
    /// `context` is NULL or open; `speed` is writable.
    pub(crate) fn query_port_speed as ibv_query_port_speed(context: *mut ibv_context, port_num: u32, speed: *mut u64) -> c_int {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        let query = op!(context, query_port_speed)?;
        // SAFETY: `query` is from the table of this context, which is open; `speed` is the caller's
        // to be written.
        Ok(unsafe { query(context.as_ptr(), port_num, speed) })
    }
}

/// The refusal of an index that the table of the port does not have. Other errors, an empty slot
/// among them, have no explanation of the front-end.
fn not_in_table(error: Errno, argument: &'static CStr, index: u32) -> Refusal {
    if error != Errno::EINVAL {
        return Refusal::unexplained(error);
    }
    let remedy = c"pass a port from 1 to phys_port_cnt, and an index below gid_tbl_len or pkey_tbl_len of ibv_query_port";
    Refusal::new(error, argument, c"is not in the table of the port", remedy)
        .with_value(u64::from(index))
}

/// Writes as much of an entry as the caller's release knows, and zeroes what it knows beyond ours.
///
/// # Safety
/// `to` is writable for `size` bytes.
unsafe fn store(to: *mut ibv_gid_entry, size: usize, entry: &ibv_gid_entry) {
    let to: *mut u8 = to.cast();
    // SAFETY: writable for `size` bytes; `entry` has all its own.
    unsafe {
        to.write_bytes(0, size);
        let known = size.min(size_of::<ibv_gid_entry>());
        to.copy_from_nonoverlapping(core::ptr::from_ref(entry).cast(), known);
    }
}
