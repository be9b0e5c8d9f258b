//! The functions of librdmacm.so.1 that this library uses, from this project or upstream.
//! `build.rs` reads the names for the linker.

use libc::*;

unsafe extern "C" {
    pub(crate) fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    pub(crate) fn rbind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    pub(crate) fn rlisten(fd: c_int, backlog: c_int) -> c_int;
    pub(crate) fn raccept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    pub(crate) fn rconnect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    pub(crate) fn rshutdown(fd: c_int, how: c_int) -> c_int;
    pub(crate) fn rclose(fd: c_int) -> c_int;
    pub(crate) fn rrecv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize;
    pub(crate) fn rrecvfrom(
        fd: c_int,
        buf: *mut c_void,
        len: usize,
        flags: c_int,
        from: *mut sockaddr,
        from_len: *mut socklen_t,
    ) -> isize;
    pub(crate) fn rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize;
    pub(crate) fn rsend(fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> isize;
    pub(crate) fn rsendto(
        fd: c_int,
        buf: *const c_void,
        len: usize,
        flags: c_int,
        to: *const sockaddr,
        to_len: socklen_t,
    ) -> isize;
    pub(crate) fn rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize;
    pub(crate) fn rreadv(fd: c_int, vector: *const iovec, count: c_int) -> isize;
    pub(crate) fn rwritev(fd: c_int, vector: *const iovec, count: c_int) -> isize;
    pub(crate) fn rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    pub(crate) fn rgetpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    pub(crate) fn rgetsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    pub(crate) fn rsetsockopt(
        fd: c_int,
        level: c_int,
        option: c_int,
        value: *const c_void,
        len: socklen_t,
    ) -> c_int;
    pub(crate) fn rgetsockopt(
        fd: c_int,
        level: c_int,
        option: c_int,
        value: *mut c_void,
        len: *mut socklen_t,
    ) -> c_int;
    pub(crate) fn rfcntl(fd: c_int, command: c_int, ...) -> c_int;
}
