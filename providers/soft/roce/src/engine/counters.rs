//! Counters of a queue pair, named as the kernel's `hw_counters` where the kernel has the counter.
//! The engine counts here; the owner of the QP reads the counters.

/// Counters of one queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets received.
    pub rcvd_pkts: u64,
    /// Packets sent, including those counted below.
    pub sent_pkts: u64,
    /// Packets of requests sent again.
    pub resent_pkts: u64,
    /// Packets dropped without a response, before any other effect.
    pub dropped_pkts: u64,
    /// Requests that arrived out of sequence.
    pub out_of_sequence: u64,
    /// Requests that arrived again.
    pub duplicate_request: u64,
    /// Requests that found no receive.
    pub out_of_buffer: u64,
    /// Sequence errors reported by the peer.
    pub packet_seq_err: u64,
    /// Responses that showed the loss of earlier ones.
    pub implied_nak_seq_err: u64,
    /// RNR NAKs received.
    pub rcvd_rnr_err: u64,
    /// Requests given up after RNR NAKs.
    pub rnr_nak_retry_err: u64,
    /// Local ACK timeouts.
    pub local_ack_timeout_err: u64,
    /// Probes of an unanswered packet.
    pub ack_probes: u64,
    /// Requests given up after all retries.
    pub retry_exceeded_err: u64,
    /// Requests refused for their length or kind.
    pub resp_local_length_error: u64,
    /// Requests refused for their key.
    pub resp_remote_access_errors: u64,
    /// Our requests that the peer refused for their key.
    pub req_remote_access_errors: u64,
    /// Our requests that the peer refused for their length or kind.
    pub req_remote_invalid_request: u64,
    /// WRITE requests received.
    pub rx_write_requests: u64,
    /// READ requests received.
    pub rx_read_requests: u64,
    /// Atomic requests received.
    pub rx_atomic_requests: u64,
    /// Received packets that a switch had marked.
    pub np_ecn_marked_roce_packets: u64,
    /// Congestion notifications sent.
    pub np_cnp_sent: u64,
    /// Congestion notifications that lowered the rate.
    pub rp_cnp_handled: u64,
    /// Congestion notifications ignored.
    pub rp_cnp_ignored: u64,
    /// Packets held behind a gap.
    pub held_pkts: u64,
}

/// Calls a macro with the names of all counters.
macro_rules! each {
    ($then:ident) => {
        $then! {
            rcvd_pkts sent_pkts resent_pkts dropped_pkts out_of_sequence duplicate_request out_of_buffer
            packet_seq_err implied_nak_seq_err rcvd_rnr_err rnr_nak_retry_err local_ack_timeout_err ack_probes
            retry_exceeded_err resp_local_length_error resp_remote_access_errors req_remote_access_errors
            req_remote_invalid_request rx_write_requests rx_read_requests rx_atomic_requests
            np_ecn_marked_roce_packets np_cnp_sent rp_cnp_handled rp_cnp_ignored held_pkts
        }
    };
}

impl Counters {
    /// The names, in the order of `values`.
    pub const NAMES: &'static [&'static str] = {
        macro_rules! names {
            ($($name:ident)*) => { &[$(stringify!($name)),*] };
        }
        each!(names)
    };

    /// All values.
    pub const fn values(&self) -> [u64; Self::NAMES.len()] {
        macro_rules! values {
            ($($name:ident)*) => { [$(self.$name),*] };
        }
        each!(values)
    }

    /// The sum of all counters except the first two, which count every packet. A change means that
    /// an unusual event happened.
    pub const fn unusual_sum(&self) -> u64 {
        macro_rules! sum {
            ($received:ident $sent:ident $($name:ident)*) => { 0_u64 $(.wrapping_add(self.$name))* };
        }
        each!(sum)
    }

    /// Name and value of each counter.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::NAMES.iter().copied().zip(self.values())
    }
}
