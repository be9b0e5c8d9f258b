//! Lists for the program: addresses by `rdma_getaddrinfo(3)`, for an id by
//! `rdma_resolve_addrinfo(3)`; and devices by `rdma_get_devices(3)`.
//! Entry points over the resolver of the C library and over the devices.

use super::channel::complete;
use crate::core::c_objects::{ResolvedInfo, free_list, id_of};
use crate::core::channel::Event;
use crate::core::device;
use crate::core::id::Backend;
use crate::kernel;
use crate::kernel::adapter;
use crate::sys::address::AF_IB;
use abi::*;
use cface::{Errno, MinusOne, mem, verb};
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

/// The result of getaddrinfo(3) for a name: the first address, as a sockaddr from calloc(3), with
/// its length; socket type and protocol.
struct Named {
    address: *mut libc::sockaddr,
    len: libc::socklen_t,
    socket: c_int,
    protocol: c_int,
}

/// Looks a name up.
///
/// # Errors
/// The error number of getaddrinfo(3), and an errno for it.
///
/// # Safety
/// The strings are NULL or end with NUL.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&libc::addrinfo>,
) -> Result<Named, (c_int, Errno)> {
    // SAFETY: the strings are NULL or end with NUL (rdma_getaddrinfo(3)); the list is freed before
    // this function returns.
    unsafe {
        let mut list = null_mut();
        let hints = hints.map_or(std::ptr::null(), std::ptr::from_ref);
        let error = libc::getaddrinfo(node, service, hints, &raw mut list);
        if error != 0 {
            let errno = match error {
                libc::EAI_SYSTEM => Errno::last(),
                libc::EAI_MEMORY => Errno::ENOMEM,
                libc::EAI_NONAME => Errno::from_raw(libc::ENODEV),
                _ => Errno::EINVAL,
            };
            return Err((error, errno));
        }
        let (socket, protocol) = ((*list).ai_socktype, (*list).ai_protocol);
        let copied = copy((*list).ai_addr, (*list).ai_addrlen);
        libc::freeaddrinfo(list);
        let (address, len) = copied.map_err(|why| (libc::EAI_MEMORY, why))?;
        Ok(Named { address, len, socket, protocol })
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
    // SAFETY: `len` bytes are readable, by contract, and writable.
    unsafe { libc::memcpy(made.as_ptr(), address.cast(), len as usize) };
    Ok((made.cast().as_ptr(), len))
}

/// The hints for the C library. The C library refuses contradictory hints.
fn libc_hints(hints: &rdma_addrinfo) -> libc::addrinfo {
    // SAFETY: zeros are valid hints.
    let mut wanted: libc::addrinfo = unsafe { std::mem::zeroed() };
    for (ours, its) in [(RAI_PASSIVE, libc::AI_PASSIVE), (RAI_NUMERICHOST, libc::AI_NUMERICHOST)] {
        if hints.ai_flags & ours != 0 {
            wanted.ai_flags |= its;
        }
    }
    // The family `AF_IB` has no names.
    if hints.ai_family != AF_IB {
        wanted.ai_family = hints.ai_family;
    }
    wanted.ai_socktype = match hints.ai_qp_type.cast_unsigned() {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    wanted.ai_protocol = match (hints.ai_port_space.cast_unsigned(), wanted.ai_socktype) {
        (RDMA_PS_TCP, _) | (RDMA_PS_IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (RDMA_PS_UDP | RDMA_PS_IPOIB, _) | (RDMA_PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    wanted
}

/// Converts a GID that was given as an IPv6 address to an `AF_IB` address. Other addresses stay.
///
/// # Safety
/// `found` is the result of [`look_up`].
unsafe fn convert(found: &mut Named, space: c_int) {
    // SAFETY: the address has room for any family (`copy`), and its family states its type.
    unsafe {
        if i32::from((*found.address).sa_family) != libc::AF_INET6 {
            return;
        }
        let six = found.address.cast::<libc::sockaddr_in6>().read_unaligned();
        let (space, port) = (space.cast_unsigned(), u16::from_be(six.sin6_port));
        let mut mask = 0;
        for (is_said, bits) in [(space != 0, RDMA_IB_IP_PS_MASK), (port != 0, RDMA_IB_IP_PORT_MASK)]
        {
            if is_said {
                mask |= bits;
            }
        }
        let converted = sockaddr_ib {
            sib_family: AF_IB as u16,
            sib_pkey: 0xffff_u16.to_be(),
            sib_flowinfo: six.sin6_flowinfo,
            sib_addr: ib_addr { ib_u: ib_addr_u { uib_addr8: six.sin6_addr.s6_addr } },
            sib_sid: (u64::from(space) << 16 | u64::from(port)).to_be(),
            sib_sid_mask: mask.to_be(),
            sib_scope_id: six.sin6_scope_id.into(),
        };
        found.address.cast::<sockaddr_ib>().write_unaligned(converted);
        found.len = size_of::<sockaddr_ib>() as libc::socklen_t;
    }
}

/// Fills in `info`, as upstream's (`rdma_getaddrinfo` in rdma-core's `librdmacm/addrinfo.c`): a
/// name gives one address, and the other members follow from the resolver's result. Without a name,
/// `hints` are copied.
///
/// # Safety
/// As `get`.
unsafe fn fill(
    info: *mut rdma_addrinfo,
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<(), (c_int, Errno)> {
    let memory = |why| (libc::EAI_MEMORY, why);
    // SAFETY: `info` is fresh; the objects of `hints` are readable; the strings end with NUL.
    unsafe {
        let info = &mut *info;
        if !node.is_null() || !service.is_null() {
            let asked = hints.map(libc_hints);
            let mut found = look_up(node, service, asked.as_ref())?;
            let (qp_type, space) =
                hints.map_or((0, 0), |hints| (hints.ai_qp_type, hints.ai_port_space));
            let of_socket = match found.socket {
                libc::SOCK_STREAM => IBV_QPT_RC,
                libc::SOCK_DGRAM => IBV_QPT_UD,
                _ => 0,
            };
            let of_protocol = match found.protocol {
                libc::IPPROTO_TCP => RDMA_PS_TCP,
                libc::IPPROTO_UDP => RDMA_PS_UDP,
                _ => 0,
            };
            let or =
                |said: c_int, follows: u32| if said == 0 { follows.cast_signed() } else { said };
            info.ai_qp_type = or(qp_type, of_socket);
            info.ai_port_space = or(space, of_protocol);
            let of_infiniband = hints.is_some_and(|hints| {
                let flags = RAI_FAMILY | RAI_NUMERICHOST;
                hints.ai_family == AF_IB && hints.ai_flags & flags == flags
            });
            if of_infiniband {
                convert(&mut found, info.ai_port_space);
            }
            info.ai_family = (*found.address).sa_family.into();
            if hints.is_some_and(|hints| hints.ai_flags & RAI_PASSIVE != 0) {
                info.ai_flags = RAI_PASSIVE;
                (info.ai_src_addr, info.ai_src_len) = (found.address, found.len);
            } else {
                (info.ai_dst_addr, info.ai_dst_len) = (found.address, found.len);
            }
        } else if let Some(hints) = hints {
            info.ai_flags = hints.ai_flags;
            info.ai_family = hints.ai_family;
            info.ai_qp_type = hints.ai_qp_type;
            info.ai_port_space = hints.ai_port_space;
            if hints.ai_dst_len > 0 && !hints.ai_dst_addr.is_null() {
                let made = copy(hints.ai_dst_addr, hints.ai_dst_len).map_err(memory)?;
                (info.ai_dst_addr, info.ai_dst_len) = made;
            }
        }
        if let Some(hints) = hints
            && info.ai_src_len == 0
            && hints.ai_src_len > 0
            && !hints.ai_src_addr.is_null()
        {
            let made = copy(hints.ai_src_addr, hints.ai_src_len).map_err(memory)?;
            (info.ai_src_addr, info.ai_src_len) = made;
        }
        Ok(())
    }
}

/// Checks that a name or hints are given, and that no subnet manager is needed.
///
/// # Errors
/// `EINVAL` neither is given; `EOPNOTSUPP` the hints require a subnet manager, which soft lacks.
///
/// # Safety
/// `hints` is NULL or readable.
unsafe fn can_be_found(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<(), Errno> {
    // SAFETY: by the contract above.
    match unsafe { hints.as_ref() } {
        None if node.is_null() && service.is_null() => Err(Errno::EINVAL),
        Some(hints) if hints.ai_flags & RAI_SA != 0 => Err(Errno::EOPNOTSUPP),
        _ => Ok(()),
    }
}

/// Resolves a name; an error has the number of getaddrinfo(3), and an errno.
///
/// # Safety
/// The strings are NULL or end with NUL; `hints` is NULL or readable, with its objects.
unsafe fn resolve_names(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<*mut rdma_addrinfo, (c_int, Errno)> {
    let memory = |why| (libc::EAI_MEMORY, why);
    // SAFETY: by the contract above; the result is fresh.
    unsafe {
        let hints = hints.as_ref();
        let info = mem::calloc_bytes(size_of::<rdma_addrinfo>()).map_err(memory)?;
        let info = info.cast().as_ptr();
        if let Err(why) = fill(info, node, service, hints) {
            free_list(info);
            return Err(why);
        }
        Ok(info)
    }
}

/// `rdma_getaddrinfo(3)`: as upstream's, -1 with errno (`EOPNOTSUPP` a subnet manager is required)
/// or the error number of getaddrinfo(3).
///
/// # Safety
/// The strings are NULL or end with NUL; `hints` is NULL or readable, with its objects; `res` is
/// NULL or writable.
pub(crate) unsafe extern "C" fn get(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    let done = cface::boundary(|| {
        // SAFETY: by the contract above.
        unsafe {
            if res.is_null() {
                return Err(Errno::EINVAL);
            }
            can_be_found(node, service, hints)?;
            match resolve_names(node, service, hints) {
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
    /// `info` is NULL or from `get`, and not used afterwards.
    pub(crate) fn free_info(info: *mut rdma_addrinfo) {
        // SAFETY: by the contract above.
        unsafe { free_list(info) };
        Ok(())
    }

    /// `rdma_resolve_addrinfo(3)`: `EOPNOTSUPP` a subnet manager is required; `EBUSY` an earlier
    /// result was not queried.
    ///
    /// # Safety
    /// `id` is NULL or live; the strings are NULL or end with NUL; `hints` is NULL or readable,
    /// with its objects.
    pub(crate) fn resolve(
        id: *mut rdma_cm_id,
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
    ) -> MinusOne {
        // SAFETY: by the contract above.
        unsafe {
            let id = id_of(id)?;
            if id.lock().resolved_info.is_some() {
                return Err(Errno::from_raw(libc::EBUSY));
            }
            can_be_found(node, service, hints)?;
            let found = resolve_names(node, service, hints).map_err(|(_, why)| why)?;
            id.lock().resolved_info = Some(ResolvedInfo::new(found));
            if id.backend() == Backend::Kernel {
                // The kernel delivers the event, so that the event is in order with the kernel's
                // events.
                let kind = u64::from(RDMA_CM_EVENT_ADDRINFO_RESOLVED);
                kernel::id::write_event(&id, RDMA_CM_EVENT_INTERNAL, 0, kind)
                    .inspect_err(|_| id.lock().resolved_info = None)?;
            } else {
                id.push(Event::new(&id, RDMA_CM_EVENT_ADDRINFO_RESOLVED, 0));
            }
            complete(&id)
        }
    }

    /// `rdma_query_addrinfo(3)`: returns the result once; `ENOENT` without a result.
    ///
    /// # Safety
    /// `id` is NULL or live; `info` is NULL or writable.
    pub(crate) fn query(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> MinusOne {
        // SAFETY: by the contract above.
        unsafe {
            let id = id_of(id)?;
            let info = info.as_mut().ok_or(Errno::EINVAL)?;
            let found = id.lock().resolved_info.take();
            *info = found.ok_or(Errno::from_raw(libc::ENOENT))?.into_raw();
        }
        Ok(MinusOne(0))
    }
}

verb! {
    /// `rdma_get_devices(3)`: contexts of all devices, which stay open.
    ///
    /// # Safety
    /// `count` is NULL or writable.
    pub(crate) fn devices(count: *mut c_int) -> *mut *mut ibv_context {
        if !count.is_null() {
            // As upstream's: 0 if the call fails.
            // SAFETY: by the contract above.
            unsafe { *count = 0 };
        }
        let present = device::present()?;
        let mut contexts: Vec<_> = present.soft.iter().map(|device| device.context.as_c()).collect();
        if present.kernel {
            contexts.extend(adapter::all_openable().iter().map(|adapter| adapter.context.as_c()));
        }
        let list = mem::calloc_bytes((contexts.len() + 1) * size_of::<*mut ibv_context>())?;
        let list = list.cast::<*mut ibv_context>().as_ptr();
        // SAFETY: the list has room for all contexts and a NULL; `count` is writable if it is not
        // NULL.
        unsafe {
            for (at, context) in contexts.iter().enumerate() {
                *list.add(at) = *context;
            }
            if !count.is_null() {
                *count = c_int::try_from(contexts.len()).unwrap_or(c_int::MAX);
            }
        }
        Ok(list)
    }

    /// `rdma_free_devices(3)`.
    ///
    /// # Safety
    /// `list` is NULL or from `devices`, and not used afterwards.
    pub(crate) fn free_devices(list: *mut *mut ibv_context) {
        // SAFETY: by the contract above.
        unsafe { mem::free(list.cast()) };
        Ok(())
    }
}
