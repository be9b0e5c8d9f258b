//! Syndromes of error entries, and their relation to `ibv_wc_status` (ibv_poll_cq(3)).

use abi::*;

/// The `syndrome` of an error entry (`MLX5_CQE_SYNDROME_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Syndrome {
    /// A message is longer than the memory for the message.
    LocalLength = 0x01,
    /// An entry of a work queue is malformed, or not permitted for the QP.
    LocalQpOperation = 0x02,
    /// An lkey does not permit the access.
    LocalProtection = 0x04,
    /// An earlier error flushed the request.
    Flushed = 0x05,
    /// A window operation failed.
    WindowBind = 0x06,
    /// A response does not belong to a request.
    BadResponse = 0x10,
    /// The memory of an inbound RDMA operation failed at the responder.
    LocalAccess = 0x11,
    /// The responder refused the request as invalid.
    RemoteInvalidRequest = 0x12,
    /// The responder refused the access.
    RemoteAccess = 0x13,
    /// The responder could not execute the request.
    RemoteOperation = 0x14,
    /// No response arrived.
    RetryExceeded = 0x15,
    /// The responder had no receive posted.
    RnrRetryExceeded = 0x16,
    /// The responder aborted the operation. libmlx5 reports unknown values as a general error.
    RemoteAborted = 0x22,
    /// No syndrome of the adapter: libmlx5 reports `IBV_WC_GENERAL_ERR`.
    General = 0xff,
}

impl Syndrome {
    const ALL: [Self; 14] = [
        Self::LocalLength,
        Self::LocalQpOperation,
        Self::LocalProtection,
        Self::Flushed,
        Self::WindowBind,
        Self::BadResponse,
        Self::LocalAccess,
        Self::RemoteInvalidRequest,
        Self::RemoteAccess,
        Self::RemoteOperation,
        Self::RetryExceeded,
        Self::RnrRetryExceeded,
        Self::RemoteAborted,
        Self::General,
    ];

    /// The syndrome with this value.
    #[must_use]
    pub fn from_raw(raw: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|syndrome| *syndrome as u8 == raw)
    }

    /// The syndrome of a failed completion with this `ibv_wc_status`.
    #[must_use]
    pub const fn of_status(status: u32) -> Self {
        match status {
            IBV_WC_LOC_LEN_ERR => Self::LocalLength,
            IBV_WC_LOC_QP_OP_ERR | IBV_WC_LOC_EEC_OP_ERR => Self::LocalQpOperation,
            IBV_WC_LOC_PROT_ERR => Self::LocalProtection,
            IBV_WC_WR_FLUSH_ERR => Self::Flushed,
            IBV_WC_MW_BIND_ERR => Self::WindowBind,
            IBV_WC_BAD_RESP_ERR => Self::BadResponse,
            IBV_WC_LOC_ACCESS_ERR => Self::LocalAccess,
            IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_INV_RD_REQ_ERR => Self::RemoteInvalidRequest,
            IBV_WC_REM_ACCESS_ERR => Self::RemoteAccess,
            IBV_WC_REM_OP_ERR => Self::RemoteOperation,
            IBV_WC_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR => Self::RetryExceeded,
            IBV_WC_RNR_RETRY_EXC_ERR => Self::RnrRetryExceeded,
            IBV_WC_REM_ABORT_ERR => Self::RemoteAborted,
            _ => Self::General,
        }
    }

    /// The `ibv_wc_status` that libmlx5 reports for this syndrome.
    #[must_use]
    pub const fn status(self) -> u32 {
        match self {
            Self::LocalLength => IBV_WC_LOC_LEN_ERR,
            Self::LocalQpOperation => IBV_WC_LOC_QP_OP_ERR,
            Self::LocalProtection => IBV_WC_LOC_PROT_ERR,
            Self::Flushed => IBV_WC_WR_FLUSH_ERR,
            Self::WindowBind => IBV_WC_MW_BIND_ERR,
            Self::BadResponse => IBV_WC_BAD_RESP_ERR,
            Self::LocalAccess => IBV_WC_LOC_ACCESS_ERR,
            Self::RemoteInvalidRequest => IBV_WC_REM_INV_REQ_ERR,
            Self::RemoteAccess => IBV_WC_REM_ACCESS_ERR,
            Self::RemoteOperation => IBV_WC_REM_OP_ERR,
            Self::RetryExceeded => IBV_WC_RETRY_EXC_ERR,
            Self::RnrRetryExceeded => IBV_WC_RNR_RETRY_EXC_ERR,
            Self::RemoteAborted => IBV_WC_REM_ABORT_ERR,
            Self::General => IBV_WC_GENERAL_ERR,
        }
    }
}

/// The reason for which an entry of a work queue is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Malformed {
    /// The doorbell record is further ahead than the queue has blocks.
    Doorbell = 1,
    /// The entry has no control segment, or ends beyond the posted blocks.
    Size = 2,
    /// The control segment names another index than the position in the queue.
    Index = 3,
    /// The control segment names another QP.
    QueuePair = 4,
    /// The adapter has no such opcode, or the QP type does not permit the opcode.
    Opcode = 5,
    /// The entry is shorter than the segments of the opcode.
    Segment = 6,
    /// Inline data ends beyond the entry, or stands where data arrives.
    Inline = 7,
    /// The entry has more data segments than a request may have.
    TooManySegments = 8,
    /// A UMR entry is no operation on a memory window. Mkeys are not emulated.
    Umr = 9,
    /// A masked atomic, which `soft` does not execute.
    Masked = 10,
}

impl Malformed {
    const ALL: [Self; 10] = [
        Self::Doorbell,
        Self::Size,
        Self::Index,
        Self::QueuePair,
        Self::Opcode,
        Self::Segment,
        Self::Inline,
        Self::TooManySegments,
        Self::Umr,
        Self::Masked,
    ];

    /// The reason with this value.
    #[must_use]
    pub fn from_raw(raw: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| *reason as u8 == raw)
    }

    /// The syndrome of the error entry.
    #[must_use]
    pub const fn syndrome(self) -> Syndrome {
        match self {
            Self::Umr => Syndrome::WindowBind,
            _ => Syndrome::LocalQpOperation,
        }
    }

    /// The `vendor_err` of the error entry: 0x80 and the reason, so that the value differs from
    /// those of `soft`.
    #[must_use]
    pub const fn vendor_err(self) -> u8 {
        0x80 | self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_syndrome_comes_back_from_its_status() {
        for syndrome in Syndrome::ALL {
            assert_eq!(Syndrome::of_status(syndrome.status()), syndrome);
            assert_eq!(Syndrome::from_raw(syndrome as u8), Some(syndrome));
        }
        assert_eq!(Syndrome::from_raw(0), None);
    }

    #[test]
    fn each_failed_status_has_a_syndrome_that_is_not_success() {
        for status in 1..=IBV_WC_TM_RNDV_INCOMPLETE {
            assert_ne!(Syndrome::of_status(status).status(), IBV_WC_SUCCESS);
        }
    }
}
