//! `rsetsockopt`, `rgetsockopt`, `rfcntl` (rsocket(7)).
//! Entry points (`entry`) change and read settings of a socket here.

use super::keep_alive;
use super::socket::{Phase, Socket, SocketState, find_socket};
use crate::calls::options as ids;
use abi::*;
use cface::{Errno, MinusOne, verb};
use ferroverbs_cm::stream::{LOW_WATER, MOST_QUEUE, scale, unscale};
use std::ffi::c_int;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::Duration;

/// The level of an rsocket's own options (`<rdma/rsocket.h>`).
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;

/// The option values of a socket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) nonblocking: bool,
    pub(super) close_on_exec: bool,
    /// The remaining flags of fcntl(2).
    pub(super) flags: c_int,
    pub(super) reuse_address: bool,
    pub(super) keep_alive: bool,
    pub(super) keep_idle: c_int,
    pub(super) out_of_band_inline: bool,
    pub(super) no_linger: bool,
    pub(super) no_delay: bool,
    pub(super) only_ipv6: bool,
    pub(super) type_of_service: c_int,
}

impl Options {
    /// The idle time before a peer is probed (`TCP_KEEPIDLE`).
    pub(super) fn idle(&self) -> Duration {
        Duration::from_secs(self.keep_idle.max(1).unsigned_abs().into())
    }
}

/// Starts or stops keep-alive probes after a change of options.
///
/// # Errors
/// The errno of the system: the thread cannot start. The option is then off.
pub(super) fn keep_alive(socket: &Arc<Socket>) -> Result<(), Errno> {
    let options = socket.lock().options;
    if !options.keep_alive {
        keep_alive::recheck();
        return Ok(());
    }
    keep_alive::schedule_probes(socket, options.idle())
        .inspect_err(|_| socket.lock().options.keep_alive = false)
}

/// Sets an option of the id.
fn of_id(state: &SocketState, option: c_int, value: &[u8]) -> Result<(), Errno> {
    ids::set_value(&state.id, (RDMA_OPTION_ID as c_int, option), Some(value), value.len())
}

/// The UDP socket of a datagram socket, which stores socket options.
fn udp_of(state: &SocketState) -> Option<c_int> {
    state.datagrams.as_ref().map(|all| all.udp.as_raw_fd())
}

/// The system's `TCP_KEEPIDLE` for TCP sockets (tcp(7)), in seconds.
fn system_keep_idle() -> c_int {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_keepalive_time");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(7200)
}

/// Whether an option is a buffer size, which the rsocket stores itself.
const fn is_size(level: c_int, option: c_int) -> bool {
    level == libc::SOL_SOCKET && matches!(option, libc::SO_RCVBUF | libc::SO_SNDBUF)
}

fn set(state: &mut SocketState, level: c_int, option: c_int, value: c_int) -> Result<(), Errno> {
    let on = value != 0;
    let number = value.cast_unsigned();
    let fresh = matches!(state.phase, Phase::Idle | Phase::Bound | Phase::Listening);
    let short = |number: u32| u16::try_from(number).unwrap_or(MOST_QUEUE).min(MOST_QUEUE);
    match (level, option) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => {
            state.options.reuse_address = on;
            // A bound socket does not change.
            if state.phase == Phase::Idle {
                of_id(state, RDMA_OPTION_ID_REUSEADDR as c_int, &value.to_ne_bytes())?;
            }
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF) if fresh => {
            state.settings.receive_bytes = number.saturating_mul(2);
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF) if fresh => {
            let bytes = number.saturating_mul(2);
            state.settings.send_bytes = if bytes < LOW_WATER { 2 * LOW_WATER } else { bytes };
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {}
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
            state.options.keep_alive = on;
            if on && state.options.keep_idle == 0 {
                state.options.keep_idle = system_keep_idle();
            }
        }
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => state.options.out_of_band_inline = on,
        (libc::SOL_SOCKET, libc::SO_LINGER) => state.options.no_linger = !on,
        (libc::IPPROTO_IP, libc::IP_TOS) => {
            state.options.type_of_service = value;
            of_id(state, RDMA_OPTION_ID_TOS as c_int, &[value as u8])?;
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => state.options.no_delay = on,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) if value <= 0 => return Err(Errno::EINVAL),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => state.options.keep_idle = value,
        (
            libc::IPPROTO_TCP,
            libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_MAXSEG | libc::TCP_CONGESTION,
        ) => {}
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
            state.options.only_ipv6 = on;
            of_id(state, RDMA_OPTION_ID_AFONLY as c_int, &value.to_ne_bytes())?;
        }
        (SOL_RDMA, RDMA_SQSIZE..=RDMA_IOMAPSIZE) if !fresh => return Err(Errno::EINVAL),
        (SOL_RDMA, RDMA_SQSIZE) => state.settings.send_queue = short(number),
        (SOL_RDMA, RDMA_RQSIZE) => state.settings.receive_queue = short(number),
        (SOL_RDMA, RDMA_INLINE) => state.settings.inline = short(number).into(),
        (SOL_RDMA, RDMA_IOMAPSIZE) => state.settings.mappings = unscale(scale(short(number))),
        _ => return Err(Errno::EOPNOTSUPP),
    }
    Ok(())
}

fn get(state: &mut SocketState, level: c_int, option: c_int) -> Result<c_int, Errno> {
    let options = &state.options;
    let bytes = |bytes: u32| c_int::try_from(bytes).unwrap_or(c_int::MAX);
    Ok(match (level, option) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => options.reuse_address.into(),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => options.keep_alive.into(),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => options.out_of_band_inline.into(),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => bytes(state.settings.receive_bytes),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => bytes(state.settings.send_bytes),
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => (state.phase == Phase::Listening).into(),
        (libc::SOL_SOCKET, libc::SO_BROADCAST) => 0,
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            state.progress();
            state.error.take().map_or(0, Errno::raw)
        }
        (libc::IPPROTO_IP, libc::IP_TOS) => options.type_of_service,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => options.no_delay.into(),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => options.keep_idle,
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_CONGESTION) => 1,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
            state.id.c().path().map_or(2048, |path| 1 << (7 + path.mtu.min(5)))
        }
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => options.only_ipv6.into(),
        (SOL_RDMA, RDMA_SQSIZE) => state.settings.send_queue.into(),
        (SOL_RDMA, RDMA_RQSIZE) => state.settings.receive_queue.into(),
        (SOL_RDMA, RDMA_INLINE) => bytes(state.settings.inline),
        (SOL_RDMA, RDMA_IOMAPSIZE) => state.settings.mappings.into(),
        _ => return Err(Errno::EOPNOTSUPP),
    })
}

/// The descriptor that stores an option of a datagram socket; `None`: the rsocket stores the option
/// itself.
pub(super) fn stored_by_udp(state: &SocketState, level: c_int, option: c_int) -> Option<c_int> {
    udp_of(state).filter(|_| level != SOL_RDMA && !is_size(level, option))
}

/// As [`stored_by_udp`], for the buffer sizes too, which the rsocket stores as well.
pub(super) fn told_to_udp(state: &SocketState, level: c_int) -> Option<c_int> {
    udp_of(state).filter(|_| level != SOL_RDMA)
}

/// Sets an option that the rsocket stores itself.
///
/// # Errors
/// `EOPNOTSUPP` an unknown option.
pub(super) fn change(
    socket: &Arc<Socket>,
    (level, option): (c_int, c_int),
    value: c_int,
) -> Result<(), Errno> {
    let before = socket.lock().options.keep_alive;
    set(&mut socket.lock(), level, option, value)?;
    let is_new = match (level, option) {
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => before != (value != 0),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => before,
        _ => false,
    };
    if is_new { keep_alive(socket) } else { Ok(()) }
}

/// The value of an option.
pub(super) enum OptionValue {
    Number(c_int),
    Linger(libc::linger),
    /// The first bytes of `struct tcp_info`.
    TcpInfo([u8; 104]),
}

/// An option that the rsocket stores itself.
///
/// # Errors
/// `EOPNOTSUPP` an unknown option.
pub(super) fn read(
    state: &mut SocketState,
    level: c_int,
    option: c_int,
) -> Result<OptionValue, Errno> {
    Ok(match (level, option) {
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let on = !state.options.no_linger;
            OptionValue::Linger(libc::linger { l_onoff: on.into(), l_linger: 0 })
        }
        (libc::IPPROTO_TCP, libc::TCP_INFO) => {
            // tcpi_state: ESTABLISHED or CLOSE (`<netinet/tcp.h>`); the other members are unknown.
            let mut info = [0_u8; 104];
            info[0] = if state.phase == Phase::Connected && state.is_open() { 1 } else { 7 };
            OptionValue::TcpInfo(info)
        }
        _ => OptionValue::Number(get(state, level, option)?),
    })
}

verb! {
    /// `rfcntl(3)`: `F_GETFL`, `F_SETFL`, `F_GETFD`, `F_SETFD`; `EOPNOTSUPP` another command.
    ///
    /// C declares the last argument variadic; the calling conventions of Linux pass it like a third
    /// argument.
    ///
    /// # Safety
    /// No requirements: a missing argument is not read.
    pub(crate) fn rfcntl(socket: c_int, command: c_int, argument: c_int) -> MinusOne {
        let socket = find_socket(socket)?;
        let mut state = socket.lock();
        let options = &mut state.options;
        let flag = |on, flag| if on { flag } else { 0 };
        Ok(MinusOne(match command {
            libc::F_GETFL => {
                options.flags | libc::O_RDWR | flag(options.nonblocking, libc::O_NONBLOCK)
            }
            libc::F_SETFL => {
                options.nonblocking = argument & libc::O_NONBLOCK != 0;
                options.flags = argument & !(libc::O_NONBLOCK | libc::O_ACCMODE);
                0
            }
            libc::F_GETFD => flag(options.close_on_exec, libc::FD_CLOEXEC),
            libc::F_SETFD => {
                options.close_on_exec = argument & libc::FD_CLOEXEC != 0;
                0
            }
            _ => return Err(Errno::EOPNOTSUPP),
        }))
    }
}
