//! Names: `rdma_getaddrinfo(3)`, `rdma_freeaddrinfo(3)`; for an id `rdma_resolve_addrinfo(3)`. They are resolved by the C library.

use super::complete;
use crate::address;
use crate::channel::Event;
use crate::id::{Id, Side};
use crate::kernel;
use abi::*;
use cface::{Errno, MinusOne, mem, verb};
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

/// What getaddrinfo(3) knows of a name: the first address, as a sockaddr from calloc(3), and its length.
///
/// # Errors
/// The errno of its error.
///
/// # Safety
/// The strings are NULL or strings.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    family: c_int,
    flags: c_int,
    socket: c_int,
) -> Result<(*mut libc::sockaddr, libc::socklen_t), (c_int, Errno)> {
    // SAFETY: zeros are valid hints; the caller's strings are NULL or end in a NUL (rdma_getaddrinfo(3)); the list is freed before this returns.
    unsafe {
        let mut hints: libc::addrinfo = std::mem::zeroed();
        (hints.ai_flags, hints.ai_family, hints.ai_socktype) = (flags, family, socket);
        let mut list = null_mut();
        let error = libc::getaddrinfo(node, service, &raw const hints, &raw mut list);
        if error != 0 {
            let errno = match error {
                libc::EAI_SYSTEM => Errno::last(),
                libc::EAI_MEMORY => Errno::ENOMEM,
                libc::EAI_NONAME => Errno::from_raw(libc::ENODEV),
                _ => Errno::EINVAL,
            };
            return Err((error, errno));
        }
        let copied = copy((*list).ai_addr, (*list).ai_addrlen);
        libc::freeaddrinfo(list);
        copied.map_err(|why| (libc::EAI_MEMORY, why))
    }
}

/// A copy of an address.
///
/// # Safety
/// `address` has `len` readable bytes.
unsafe fn copy(
    address: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<(*mut libc::sockaddr, libc::socklen_t), Errno> {
    let made = mem::calloc_bytes((len as usize).max(size_of::<libc::sockaddr_storage>()))?;
    // SAFETY: as many are readable, by contract, and writable.
    unsafe { libc::memcpy(made.as_ptr(), address.cast(), len as usize) };
    Ok((made.cast().as_ptr(), len))
}

/// Fills in `info`.
///
/// # Safety
/// As `get`.
unsafe fn fill(
    info: *mut rdma_addrinfo,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<(), (c_int, Errno)> {
    // SAFETY: `info` is fresh; `hints` is NULL or readable, with what it names; the strings are strings.
    unsafe {
        let hints = hints.as_ref();
        let flags = hints.map_or(0, |hints| hints.ai_flags);
        let passive = flags & RAI_PASSIVE != 0;
        let (mut qp_type, mut space) =
            hints.map_or((0, 0), |hints| (hints.ai_qp_type, hints.ai_port_space));
        let ud = IBV_QPT_UD.cast_signed();
        if space == 0 {
            let udp = qp_type == ud;
            space = if udp { RDMA_PS_UDP } else { RDMA_PS_TCP }.cast_signed();
        }
        let for_datagrams = [RDMA_PS_UDP, RDMA_PS_IPOIB].contains(&space.cast_unsigned());
        if qp_type == 0 {
            qp_type = if for_datagrams { ud } else { IBV_QPT_RC.cast_signed() };
        }
        let socket = if for_datagrams { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
        let family = hints.map_or(0, |hints| hints.ai_family);
        // AF_IB has no names.
        let family = if [libc::AF_INET, libc::AF_INET6].contains(&family) { family } else { 0 };
        let mut asked = if passive { libc::AI_PASSIVE } else { 0 };
        if flags & RAI_NUMERICHOST != 0 {
            asked |= libc::AI_NUMERICHOST;
        }
        (*info).ai_flags = flags;
        (*info).ai_qp_type = qp_type;
        (*info).ai_port_space = space;
        if !node.is_null() || !service.is_null() {
            let (found, len) = look_up(node, service, family, asked, socket)?;
            (*info).ai_family = i32::from((*found).sa_family);
            if passive {
                ((*info).ai_src_addr, (*info).ai_src_len) = (found, len);
            } else {
                ((*info).ai_dst_addr, (*info).ai_dst_len) = (found, len);
            }
        }
        let Some(hints) = hints else { return source(info) };
        let memory = |why| (libc::EAI_MEMORY, why);
        if (*info).ai_dst_addr.is_null() && !hints.ai_dst_addr.is_null() {
            let made = copy(hints.ai_dst_addr, hints.ai_dst_len).map_err(memory)?;
            ((*info).ai_dst_addr, (*info).ai_dst_len) = made;
            (*info).ai_family = i32::from((*hints.ai_dst_addr).sa_family);
        }
        if (*info).ai_src_addr.is_null() && !hints.ai_src_addr.is_null() {
            let made = copy(hints.ai_src_addr, hints.ai_src_len).map_err(memory)?;
            ((*info).ai_src_addr, (*info).ai_src_len) = made;
            if (*info).ai_family == 0 {
                (*info).ai_family = i32::from((*hints.ai_src_addr).sa_family);
            }
        }
        source(info)
    }
}

/// Which address of ours leads to the destination.
///
/// # Safety
/// `info` is readable and writable, with what it names.
unsafe fn source(info: *mut rdma_addrinfo) -> Result<(), (c_int, Errno)> {
    // SAFETY: by the contract above; storage is writable.
    unsafe {
        let passive = (*info).ai_flags & (RAI_PASSIVE | RAI_NOROUTE) != 0;
        if passive || (*info).ai_dst_addr.is_null() || !(*info).ai_src_addr.is_null() {
            return Ok(());
        }
        let Ok(destination) = address::read((*info).ai_dst_addr) else { return Ok(()) };
        // Where there is no way, rdma_resolve_addr(3) says so.
        let Ok(own) = address::source_for(destination) else { return Ok(()) };
        let mut storage: libc::sockaddr_storage = std::mem::zeroed();
        let len = address::write(&raw mut storage, own);
        let made = copy((&raw const storage).cast(), len as libc::socklen_t);
        ((*info).ai_src_addr, (*info).ai_src_len) = made.map_err(|why| (libc::EAI_MEMORY, why))?;
        Ok(())
    }
}

/// What was found for an id, as long as the id lives.
#[derive(Debug)]
pub(crate) struct Found(*mut rdma_addrinfo);

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: `find` made it, and it was given to nobody.
        unsafe { free(self.0) };
    }
}

impl Found {
    /// A copy for the program.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn copy(&self) -> Result<*mut rdma_addrinfo, Errno> {
        // SAFETY: the original is live; the copy is fresh, and what it names so far is its own.
        unsafe {
            let of = &*self.0;
            let new =
                mem::calloc_bytes(size_of::<rdma_addrinfo>())?.cast::<rdma_addrinfo>().as_ptr();
            (*new).ai_flags = of.ai_flags;
            (*new).ai_family = of.ai_family;
            (*new).ai_qp_type = of.ai_qp_type;
            (*new).ai_port_space = of.ai_port_space;
            let addresses = || -> Result<(), Errno> {
                if !of.ai_src_addr.is_null() {
                    ((*new).ai_src_addr, (*new).ai_src_len) = copy(of.ai_src_addr, of.ai_src_len)?;
                }
                if !of.ai_dst_addr.is_null() {
                    ((*new).ai_dst_addr, (*new).ai_dst_len) = copy(of.ai_dst_addr, of.ai_dst_len)?;
                }
                Ok(())
            };
            if let Err(why) = addresses() {
                free(new);
                return Err(why);
            }
            Ok(new)
        }
    }
}

/// Whether there is anything to look for.
///
/// # Safety
/// `hints` is NULL or readable.
unsafe fn is_asked(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> bool {
    // SAFETY: by the contract above.
    let hints = unsafe { hints.as_ref() };
    let given = hints.is_some_and(|h| !h.ai_src_addr.is_null() || !h.ai_dst_addr.is_null());
    given || !node.is_null() || !service.is_null()
}

/// Looks up what is asked for; the errors are getaddrinfo(3)'s number, and errno.
///
/// # Safety
/// The strings are NULL or strings; `hints` is NULL or readable, with what it names.
unsafe fn find(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<*mut rdma_addrinfo, (c_int, Errno)> {
    let memory = |why| (libc::EAI_MEMORY, why);
    // SAFETY: by the contract above; the result is fresh.
    unsafe {
        let info = mem::calloc_bytes(size_of::<rdma_addrinfo>()).map_err(memory)?;
        let info = info.cast().as_ptr();
        if let Err(why) = fill(info, node, service, hints) {
            free(info);
            return Err(why);
        }
        Ok(info)
    }
}

/// `rdma_getaddrinfo(3)`: as upstream's, -1 with errno or the number of getaddrinfo(3).
///
/// # Safety
/// The strings are NULL or strings; `hints` is NULL or readable, with what it names; `res` is NULL or writable.
pub(crate) unsafe extern "C" fn get(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    let done = cface::boundary(|| {
        // SAFETY: by the contract above.
        unsafe {
            if res.is_null() || !is_asked(node, service, hints) {
                return Err(Errno::EINVAL);
            }
            match find(node, service, hints) {
                Ok(info) => *res = info,
                Err((error, errno)) => {
                    errno.set();
                    return Ok(MinusOne(error));
                }
            }
        }
        Ok(MinusOne(0))
    });
    done.0
}

verb! {
    /// `rdma_freeaddrinfo(3)`.
    ///
    /// # Safety
    /// `info` is NULL or from `get`, and used no more.
    pub(crate) fn free(info: *mut rdma_addrinfo) {
        let mut at = info;
        // SAFETY: by the contract above; all that it names is from calloc(3), or NULL.
        unsafe {
            while !at.is_null() {
                let next = (*at).ai_next;
                mem::free((*at).ai_src_addr.cast());
                mem::free((*at).ai_dst_addr.cast());
                mem::free((*at).ai_src_canonname.cast());
                mem::free((*at).ai_dst_canonname.cast());
                mem::free((*at).ai_route);
                mem::free((*at).ai_connect);
                mem::free(at.cast());
                at = next;
            }
        }
        Ok(())
    }

    /// `rdma_resolve_addrinfo(3)`: `EOPNOTSUPP` where a subnet manager is to be asked, and only that.
    ///
    /// # Safety
    /// `id` is NULL or live; the strings are NULL or strings; `hints` is NULL or readable, with what it names.
    pub(crate) fn resolve(
        id: *mut rdma_cm_id,
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
    ) -> MinusOne {
        // SAFETY: by the contract above.
        unsafe {
            let id = Id::of(id)?;
            let flags = hints.as_ref().map_or(0, |hints| hints.ai_flags);
            if flags & (RAI_SA | RAI_DNS) == RAI_SA {
                return Err(Errno::EOPNOTSUPP);
            }
            if !is_asked(node, service, hints) {
                return Err(Errno::EINVAL);
            }
            let (kind, status) = match find(node, service, hints) {
                Ok(found) => {
                    id.lock().found = Some(Found(found));
                    if id.side() == Side::Kernel {
                        // The kernel brings the event, so that it is in order with its own.
                        let kind = u64::from(RDMA_CM_EVENT_ADDRINFO_RESOLVED);
                        kernel::id::write_event(&id, RDMA_CM_EVENT_INTERNAL, 0, kind)?;
                        return complete(&id);
                    }
                    (RDMA_CM_EVENT_ADDRINFO_RESOLVED, 0)
                }
                Err((_, why)) if id.side() == Side::Kernel => return Err(why),
                Err((_, why)) => (RDMA_CM_EVENT_ADDRINFO_ERROR, -why.raw()),
            };
            id.push(Event::new(&id, kind, status));
            complete(&id)
        }
    }

    /// `rdma_query_addrinfo(3)`: a copy of what was found.
    ///
    /// # Safety
    /// `id` is NULL or live; `info` is NULL or writable.
    pub(crate) fn query(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> MinusOne {
        // SAFETY: by the contract above.
        unsafe {
            let id = Id::of(id)?;
            let info = info.as_mut().ok_or(Errno::EINVAL)?;
            *info = id.lock().found.as_ref().ok_or(Errno::EINVAL)?.copy()?;
        }
        Ok(MinusOne(0))
    }
}
