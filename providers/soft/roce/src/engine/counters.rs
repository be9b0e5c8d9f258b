//! What is counted, under the names of the kernel's `hw_counters` where it has one.

/// Counters of one queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that came.
    pub rcvd_pkts: u64,
    /// Packets that went, those below included.
    pub sent_pkts: u64,
    /// Packets of requests that went again.
    pub resent_pkts: u64,
    /// Packets that were dropped unanswered before anything else.
    pub dropped_pkts: u64,
    /// Requests that came before their turn.
    pub out_of_sequence: u64,
    /// Requests that came again.
    pub duplicate_request: u64,
    /// Requests for which there was no receive.
    pub out_of_buffer: u64,
    /// Sequence errors that the peer told.
    pub packet_seq_err: u64,
    /// Answers that showed that earlier ones are missing.
    pub implied_nak_seq_err: u64,
    /// RNR NAKs that came.
    pub rcvd_rnr_err: u64,
    /// Requests that were given up after RNR NAKs.
    pub rnr_nak_retry_err: u64,
    /// Times that no acknowledgement came.
    pub local_ack_timeout_err: u64,
    /// Times that an unanswered packet was asked about early.
    pub ack_probes: u64,
    /// Requests that were given up.
    pub retry_exceeded_err: u64,
    /// Requests refused for their length or kind.
    pub resp_local_length_error: u64,
    /// Requests refused for their key.
    pub resp_remote_access_errors: u64,
    /// Our requests that were refused for their key.
    pub req_remote_access_errors: u64,
    /// Our requests that were refused for their length or kind.
    pub req_remote_invalid_request: u64,
    /// Requests to write.
    pub rx_write_requests: u64,
    /// Requests to read.
    pub rx_read_requests: u64,
    /// Atomic requests.
    pub rx_atomic_requests: u64,
    /// Packets that a switch had marked.
    pub np_ecn_marked_roce_packets: u64,
    /// Congestion notifications that went.
    pub np_cnp_sent: u64,
    /// Congestion notifications that lowered the rate.
    pub rp_cnp_handled: u64,
    /// Congestion notifications that were ignored.
    pub rp_cnp_ignored: u64,
    /// Packets kept behind a gap.
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
    /// Their names, in the order of `values`.
    pub const NAMES: &'static [&'static str] = {
        macro_rules! names {
            ($($name:ident)*) => { &[$(stringify!($name)),*] };
        }
        each!(names)
    };

    /// The values of all.
    pub const fn values(&self) -> [u64; Self::NAMES.len()] {
        macro_rules! values {
            ($($name:ident)*) => { [$(self.$name),*] };
        }
        each!(values)
    }

    /// The sum of all but those that count each packet, which stand first: whether anything unusual happened since it was last asked.
    pub const fn unusual(&self) -> u64 {
        macro_rules! sum {
            ($received:ident $sent:ident $($name:ident)*) => { 0_u64 $(.wrapping_add(self.$name))* };
        }
        each!(sum)
    }

    /// Name and value of each.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::NAMES.iter().copied().zip(self.values())
    }
}
