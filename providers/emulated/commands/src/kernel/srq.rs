//! Commands on SRQs, and their doorbells.

use core::mem::offset_of;

use abi::*;

use super::{Answer, Kernel, Srq, WriteRequest};
use crate::carrier::Carrier;
use crate::fields::{Fields, Structure};
use crate::refusal::Refusal;
use crate::vendor::{NewSrq, Next, QueueMemory, Vendor};

impl<V: Vendor> Kernel<V> {
    pub(super) fn create_srq(
        &mut self,
        sent: &WriteRequest<'_>,
        memory: &mut dyn QueueMemory,
        carrier: &mut dyn Carrier,
    ) -> Result<Answer, Refusal> {
        type Request = ib_uverbs_create_srq;
        type Response = ib_uverbs_create_srq_resp;
        if self.vendor.limits().max_srq == 0 {
            return Err(Refusal::Unsupported);
        }
        let core = Fields::new(sent.core);
        let pd = core.u32(offset_of!(Request, pd_handle));
        let max_wr = core.u32(offset_of!(Request, max_wr));
        let max_sge = core.u32(offset_of!(Request, max_sge));
        self.pds.get(pd)?;
        let number = self.srqs.next()?;
        let new = NewSrq { max_wr, max_sge, number };
        let made = self.vendor.create_srq(&new, sent.vendor, memory)?;
        if let Err(refusal) = carrier.create_srq(number, pd, max_wr, max_sge) {
            self.vendor.destroy_srq(made.object, memory);
            return Err(refusal);
        }
        let user_handle = core.u64(offset_of!(Request, user_handle));
        let srq = Srq { pd, users: 0, user_handle, max_wr, max_sge, queue: made.object };
        let handle = self.srqs.add(srq)?;
        self.pds.get_mut(pd)?.users += 1;
        let response = Structure::new(size_of::<Response>())
            .u32(offset_of!(Response, srq_handle), handle)
            .u32(offset_of!(Response, max_wr), max_wr)
            .u32(offset_of!(Response, max_sge), max_sge)
            .u32(offset_of!(Response, srqn), number);
        Ok(Answer { core: response.into_bytes(), vendor: made.response })
    }

    pub(super) fn query_srq(&self, core: Fields<'_>) -> Result<Answer, Refusal> {
        type Response = ib_uverbs_query_srq_resp;
        let srq = self.srqs.get(core.u32(offset_of!(ib_uverbs_query_srq, srq_handle)))?;
        let response = Structure::new(size_of::<Response>())
            .u32(offset_of!(Response, max_wr), srq.max_wr)
            .u32(offset_of!(Response, max_sge), srq.max_sge);
        Ok(Answer { core: response.into_bytes(), vendor: Vec::new() })
    }

    pub(super) fn destroy_srq(
        &mut self,
        core: Fields<'_>,
        memory: &mut dyn QueueMemory,
        carrier: &mut dyn Carrier,
    ) -> Result<Answer, Refusal> {
        let handle = core.u32(offset_of!(ib_uverbs_destroy_srq, srq_handle));
        if self.srqs.get(handle).is_ok_and(|srq| srq.users > 0) {
            return Err(Refusal::InUse);
        }
        let srq = self.srqs.remove(handle)?;
        carrier.destroy_srq(handle);
        self.vendor.destroy_srq(srq.queue, memory);
        self.release_pd(srq.pd);
        let reported = carrier.forget_reports(srq.user_handle);
        let core = Structure::new(size_of::<ib_uverbs_destroy_srq_resp>()).u32(0, reported);
        Ok(Answer { core: core.into_bytes(), vendor: Vec::new() })
    }

    /// The handle of the SRQ whose provider's object is `user_handle`.
    #[must_use]
    pub fn srq_of(&self, user_handle: u64) -> Option<u32> {
        let mut found = self.srqs.iter();
        found.find(|(_, srq)| srq.user_handle == user_handle).map(|(handle, _)| handle)
    }

    /// Reads the doorbell of an SRQ, and hands new receives to the carrier. A receive that the
    /// carrier refuses, and a broken queue, raise `IBV_EVENT_SRQ_ERR`: no QP could complete them.
    /// Returns the number of receives.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] without such an SRQ.
    pub fn ring_srq(
        &mut self,
        handle: u32,
        memory: &dyn QueueMemory,
        carrier: &mut dyn Carrier,
    ) -> Result<usize, Refusal> {
        let srq = self.srqs.get_mut(handle)?;
        let mut count = 0;
        loop {
            let next = self.vendor.next_shared_receive(&mut srq.queue, memory, &mut self.receive);
            let is_good = match next {
                Next::Nothing => return Ok(count),
                Next::Failed(..) => false,
                Next::Decoded => carrier.shared_receive(handle, &self.receive).is_ok(),
            };
            if !is_good {
                carrier.report(srq.user_handle, IBV_EVENT_SRQ_ERR);
            }
            count += 1;
        }
    }
}
