//! Bit masks that Rust code computes with. The C structs keep plain integers; `from_bits_retain`
//! converts from an integer and keeps unknown bits.

use bitflags::bitflags;

bitflags! {
    /// [`ibv_access_flags`](crate::ibv_access_flags) (`ibv_reg_mr(3)`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AccessFlags: u32 {
        /// The device may write.
        const LOCAL_WRITE = 1 << 0;
        /// A peer may write.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read.
        const REMOTE_READ = 1 << 2;
        /// A peer may use atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Windows may be bound.
        const MW_BIND = 1 << 4;
        /// Remote addresses start at 0.
        const ZERO_BASED = 1 << 5;
        /// Pages are brought in on demand.
        const ON_DEMAND = 1 << 6;
        /// The memory is made of huge pages.
        const HUGETLB = 1 << 7;
        /// A peer may flush to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may flush to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// PCI relaxed ordering; the first optional bit.
        const RELAXED_ORDERING = 1 << 20;
        /// Bits a kernel may ignore.
        const OPTIONAL_RANGE = 0x3ff0_0000;
        const _ = !0;
    }

    /// [`ibv_qp_attr_mask`](crate::ibv_qp_attr_mask) (`ibv_modify_qp(3)`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QpAttrMask: u32 {
        /// `qp_state`
        const STATE = 1 << 0;
        /// `cur_qp_state`
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `qp_access_flags`
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`
        const PKEY_INDEX = 1 << 4;
        /// `port_num`
        const PORT = 1 << 5;
        /// `qkey`
        const QKEY = 1 << 6;
        /// `ah_attr`
        const AV = 1 << 7;
        /// `path_mtu`
        const PATH_MTU = 1 << 8;
        /// `timeout`
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `alt_ah_attr` and its companions
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `path_mig_state`
        const PATH_MIG_STATE = 1 << 18;
        /// `cap`
        const CAP = 1 << 19;
        /// `dest_qp_num`
        const DEST_QPN = 1 << 20;
        /// `rate_limit`
        const RATE_LIMIT = 1 << 25;
        const _ = !0;
    }

    /// [`ibv_send_flags`](crate::ibv_send_flags) (`ibv_post_send(3)`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// Wait for earlier reads and atomics.
        const FENCE = 1 << 0;
        /// Report a completion.
        const SIGNALED = 1 << 1;
        /// Raise a solicited event at the receiver.
        const SOLICITED = 1 << 2;
        /// Copy the data into the request.
        const INLINE = 1 << 3;
        /// Let the device compute IP checksums.
        const IP_CSUM = 1 << 4;
        const _ = !0;
    }

    /// [`ibv_wc_flags`](crate::ibv_wc_flags) (`ibv_poll_cq(3)`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WcFlags: u32 {
        /// A GRH was received.
        const GRH = 1 << 0;
        /// Immediate data is valid.
        const WITH_IMM = 1 << 1;
        /// The checksums were right.
        const IP_CSUM_OK = 1 << 2;
        /// The invalidated rkey is valid.
        const WITH_INV = 1 << 3;
        /// The tag list must be synchronised.
        const TM_SYNC_REQ = 1 << 4;
        /// A tag matched.
        const TM_MATCH = 1 << 5;
        /// The tagged data has arrived.
        const TM_DATA_VALID = 1 << 6;
        const _ = !0;
    }

    /// [`ibv_mr_init_attr_mask`](crate::ibv_mr_init_attr_mask) (`ibv_reg_mr_ex(3)`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MrInitMask: u64 {
        /// `iova`
        const IOVA = 1 << 0;
        /// `addr`
        const ADDR = 1 << 1;
        /// `fd`
        const FD = 1 << 2;
        /// `fd_offset`
        const FD_OFFSET = 1 << 3;
        /// `dmah`
        const DMAH = 1 << 4;
        /// `buf`
        const BUF = 1 << 5;
        const _ = !0;
    }
}
