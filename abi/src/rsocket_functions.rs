//! Functions of `librdmacm.so.1` for sockets over RDMA, as declared in `<rdma/rsocket.h>`: calls of
//! the C library with the prefix `r`, for descriptors of `rsocket`. See `rsocket(7)`. The epoll
//! functions came with rdma-core 65 (`RDMACM_1.5`).

use core::ffi::{c_int, c_void};

unsafe extern "C" {
    /// A socket over RDMA, or -1 and errno.
    pub fn rsocket(domain: c_int, type_: c_int, protocol: c_int) -> c_int;

    /// bind(2)
    pub fn rbind(socket: c_int, addr: *const libc::sockaddr, addrlen: libc::socklen_t) -> c_int;

    /// listen(2)
    pub fn rlisten(socket: c_int, backlog: c_int) -> c_int;

    /// accept(2)
    pub fn raccept(
        socket: c_int,
        addr: *mut libc::sockaddr,
        addrlen: *mut libc::socklen_t,
    ) -> c_int;

    /// connect(2)
    pub fn rconnect(socket: c_int, addr: *const libc::sockaddr, addrlen: libc::socklen_t) -> c_int;

    /// shutdown(2)
    pub fn rshutdown(socket: c_int, how: c_int) -> c_int;

    /// close(2)
    pub fn rclose(socket: c_int) -> c_int;

    /// recv(2)
    pub fn rrecv(socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> libc::ssize_t;

    /// recvfrom(2)
    pub fn rrecvfrom(
        socket: c_int,
        buf: *mut c_void,
        len: usize,
        flags: c_int,
        src_addr: *mut libc::sockaddr,
        addrlen: *mut libc::socklen_t,
    ) -> libc::ssize_t;

    /// recvmsg(2)
    pub fn rrecvmsg(socket: c_int, msg: *mut libc::msghdr, flags: c_int) -> libc::ssize_t;

    /// send(2)
    pub fn rsend(socket: c_int, buf: *const c_void, len: usize, flags: c_int) -> libc::ssize_t;

    /// sendto(2)
    pub fn rsendto(
        socket: c_int,
        buf: *const c_void,
        len: usize,
        flags: c_int,
        dest_addr: *const libc::sockaddr,
        addrlen: libc::socklen_t,
    ) -> libc::ssize_t;

    /// sendmsg(2)
    pub fn rsendmsg(socket: c_int, msg: *const libc::msghdr, flags: c_int) -> libc::ssize_t;

    /// read(2)
    pub fn rread(socket: c_int, buf: *mut c_void, count: usize) -> libc::ssize_t;

    /// readv(2)
    pub fn rreadv(socket: c_int, iov: *const libc::iovec, iovcnt: c_int) -> libc::ssize_t;

    /// write(2)
    pub fn rwrite(socket: c_int, buf: *const c_void, count: usize) -> libc::ssize_t;

    /// writev(2)
    pub fn rwritev(socket: c_int, iov: *const libc::iovec, iovcnt: c_int) -> libc::ssize_t;

    /// poll(2), for descriptors of both kinds
    pub fn rpoll(fds: *mut libc::pollfd, nfds: libc::nfds_t, timeout: c_int) -> c_int;

    /// select(2), for descriptors of both kinds
    pub fn rselect(
        nfds: c_int,
        readfds: *mut libc::fd_set,
        writefds: *mut libc::fd_set,
        exceptfds: *mut libc::fd_set,
        timeout: *mut libc::timeval,
    ) -> c_int;

    /// getpeername(2)
    pub fn rgetpeername(
        socket: c_int,
        addr: *mut libc::sockaddr,
        addrlen: *mut libc::socklen_t,
    ) -> c_int;

    /// getsockname(2)
    pub fn rgetsockname(
        socket: c_int,
        addr: *mut libc::sockaddr,
        addrlen: *mut libc::socklen_t,
    ) -> c_int;

    /// setsockopt(2), with a level `SOL_RDMA` besides
    pub fn rsetsockopt(
        socket: c_int,
        level: c_int,
        optname: c_int,
        optval: *const c_void,
        optlen: libc::socklen_t,
    ) -> c_int;

    /// getsockopt(2)
    pub fn rgetsockopt(
        socket: c_int,
        level: c_int,
        optname: c_int,
        optval: *mut c_void,
        optlen: *mut libc::socklen_t,
    ) -> c_int;

    /// fcntl(2)
    pub fn rfcntl(socket: c_int, cmd: c_int, ...) -> c_int;

    /// Lets the peer write into memory; its name for that is an offset, which is returned, or -1
    /// and errno.
    pub fn riomap(
        socket: c_int,
        buf: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        offset: libc::off_t,
    ) -> libc::off_t;

    /// Ends that.
    pub fn riounmap(socket: c_int, buf: *mut c_void, len: usize) -> c_int;

    /// Writes into the peer's memory at an offset. How much was written.
    pub fn riowrite(
        socket: c_int,
        buf: *const c_void,
        count: usize,
        offset: libc::off_t,
        flags: c_int,
    ) -> usize;

    /// epoll_create1(2), for descriptors of both kinds
    pub fn repoll_create(flags: c_int) -> c_int;

    /// epoll_ctl(2)
    pub fn repoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int;

    /// epoll_wait(2)
    pub fn repoll_wait(
        epfd: c_int,
        events: *mut libc::epoll_event,
        maxevents: c_int,
        timeout: c_int,
    ) -> c_int;
}
