//! Names: `rdma_getaddrinfo(3)`, `rdma_freeaddrinfo(3)`. They are resolved by the C library.

use crate::address;
use abi::*;
use cface::{Errno, MinusOne, mem, verb};
use std::ffi::{c_char, c_int};
use std::net::SocketAddr;
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
    // SAFETY: zeros are valid hints; the strings are, by contract; the list is freed before this returns.
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
        let Ok(own) = address::source_for(destination.ip()) else { return Ok(()) };
        let mut storage: libc::sockaddr_storage = std::mem::zeroed();
        let len = address::write(&raw mut storage, SocketAddr::new(own, 0));
        let made = copy((&raw const storage).cast(), len as libc::socklen_t);
        ((*info).ai_src_addr, (*info).ai_src_len) = made.map_err(|why| (libc::EAI_MEMORY, why))?;
        Ok(())
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
            let nothing = hints
                .as_ref()
                .is_none_or(|hints| hints.ai_src_addr.is_null() && hints.ai_dst_addr.is_null());
            if res.is_null() || (node.is_null() && service.is_null() && nothing) {
                return Err(Errno::EINVAL);
            }
            let info = mem::calloc_bytes(size_of::<rdma_addrinfo>())?.cast().as_ptr();
            if let Err((error, errno)) = fill(info, node, service, hints) {
                free(info);
                errno.set();
                return Ok(MinusOne(error));
            }
            *res = info;
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

    /// `rdma_resolve_addrinfo(3)`: names are resolved by `rdma_getaddrinfo(3)` only.
    ///
    /// # Safety
    /// Nothing is asked.
    pub(crate) fn resolve(
        _id: *mut rdma_cm_id,
        _node: *const c_char,
        _service: *const c_char,
        _hints: *const rdma_addrinfo,
    ) -> MinusOne {
        Err(Errno::EOPNOTSUPP)
    }

    /// `rdma_query_addrinfo(3)`: as above.
    ///
    /// # Safety
    /// Nothing is asked.
    pub(crate) fn query(_id: *mut rdma_cm_id, _info: *mut *mut rdma_addrinfo) -> MinusOne {
        Err(Errno::EOPNOTSUPP)
    }
}
