//! Doorbells and completions: requests from the queues of the provider to the carrier, and results
//! back.

use abi::*;

use super::{Cq, Kernel};
use crate::carrier::Carrier;
use crate::refusal::Refusal;
use crate::vendor::{Completion, Next, Queue, QueueMemory, Status, Vendor};

impl<V: Vendor> Kernel<V> {
    /// The handle of the QP whose provider's object is `user_handle`.
    #[must_use]
    pub fn qp_of(&self, user_handle: u64) -> Option<u32> {
        let mut found = self.qps.iter();
        found.find(|(_, qp)| qp.user_handle == user_handle).map(|(handle, _)| handle)
    }

    /// The handle of the CQ whose provider's object is `user_handle`.
    #[must_use]
    pub fn cq_of(&self, user_handle: u64) -> Option<u32> {
        let mut found = self.cqs.iter();
        found.find(|(_, cq)| cq.user_handle == user_handle).map(|(handle, _)| handle)
    }

    /// Reads the doorbells of a QP, and hands new receives and requests to the carrier. An entry
    /// that fails at once gets its completion entry. Returns the number of entries.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] without such a QP.
    pub fn ring(
        &mut self,
        handle: u32,
        memory: &mut dyn QueueMemory,
        carrier: &mut dyn Carrier,
    ) -> Result<usize, Refusal> {
        let receives = self.ring_receives(handle, memory, carrier)?;
        Ok(receives + self.ring_requests(handle, memory, carrier)?)
    }

    fn ring_receives(
        &mut self,
        handle: u32,
        memory: &mut dyn QueueMemory,
        carrier: &mut dyn Carrier,
    ) -> Result<usize, Refusal> {
        let mut count = 0;
        loop {
            let qp = self.qps.get_mut(handle)?;
            let state = u32::from(qp.last.state);
            if state == IBV_QPS_RESET {
                return Ok(count);
            }
            let (id, status) =
                match self.vendor.next_receive(&mut qp.queues, memory, &mut self.receive) {
                    Next::Nothing => return Ok(count),
                    Next::Failed(id, status) => (id, status),
                    Next::Decoded if state == IBV_QPS_ERR && !self.vendor.keeps_order() => {
                        (self.receive.id, Status::Flushed)
                    }
                    Next::Decoded => match carrier.receive(handle, &self.receive) {
                        Ok(()) => {
                            count += 1;
                            continue;
                        }
                        Err(status) => (self.receive.id, status),
                    },
                };
            count += 1;
            let (qp, queue) = (qp.number, Queue::Receive);
            let completion = Completion { qp, queue, id: Some(id), status, ..Default::default() };
            self.complete(handle, &completion, memory, carrier)?;
        }
    }

    fn ring_requests(
        &mut self,
        handle: u32,
        memory: &mut dyn QueueMemory,
        carrier: &mut dyn Carrier,
    ) -> Result<usize, Refusal> {
        let mut count = 0;
        loop {
            let qp = self.qps.get_mut(handle)?;
            let state = u32::from(qp.last.state);
            let may_send = [IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_ERR];
            if !may_send.contains(&state) {
                return Ok(count);
            }
            let next = self.vendor.next_send(&mut qp.queues, memory, &mut self.request);
            let (id, status) = match next {
                Next::Nothing => return Ok(count),
                Next::Failed(id, status) => (id, status),
                Next::Decoded if state == IBV_QPS_ERR && !self.vendor.keeps_order() => {
                    (self.request.id, Status::Flushed)
                }
                Next::Decoded => match carrier.send(handle, &self.request) {
                    Ok(()) => {
                        count += 1;
                        continue;
                    }
                    Err(status) => (self.request.id, status),
                },
            };
            count += 1;
            let completion = Completion {
                qp: qp.number,
                queue: Queue::Send,
                id: Some(id),
                status,
                operation: self.request.operation,
                ..Default::default()
            };
            self.complete(handle, &completion, memory, carrier)?;
        }
    }

    /// Writes the completion entry of a request or receive of a QP, and delivers the event that is
    /// due. A CQ without room is reported once.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] without such a QP.
    pub fn complete(
        &mut self,
        handle: u32,
        completion: &Completion,
        memory: &mut dyn QueueMemory,
        carrier: &mut dyn Carrier,
    ) -> Result<(), Refusal> {
        let qp = self.qps.get(handle)?;
        let cq = match self.vendor.queue_of(completion) {
            Queue::Send => qp.send_cq,
            Queue::Receive => qp.recv_cq,
        };
        let cq = self.cqs.get_mut(cq)?;
        if self.vendor.complete(&mut cq.queue, &qp.queues, completion, memory).is_err() {
            if !core::mem::replace(&mut cq.is_overrun, true) {
                carrier.report(cq.user_handle, IBV_EVENT_CQ_ERR);
            }
            return Ok(());
        }
        notify(&self.vendor, cq, memory, carrier);
        Ok(())
    }

    /// Reads the arming doorbell of a CQ, and delivers the event that is due.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] without such a CQ.
    pub fn arm(
        &mut self,
        handle: u32,
        memory: &dyn QueueMemory,
        carrier: &mut dyn Carrier,
    ) -> Result<(), Refusal> {
        notify(&self.vendor, self.cqs.get_mut(handle)?, memory, carrier);
        Ok(())
    }
}

fn notify<V: Vendor>(
    vendor: &V,
    cq: &mut Cq<V::Cq>,
    memory: &dyn QueueMemory,
    carrier: &mut dyn Carrier,
) {
    if vendor.take_event(&mut cq.queue, memory)
        && let Some(channel) = cq.channel
    {
        carrier.notify(channel, cq.user_handle);
    }
}
