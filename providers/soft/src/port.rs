//! The adapter's port, which goes down and comes up on request only, and everything else that is done on request: orders are carried
//! out by the service thread, one after the other (`soft_semantics::faults`).

use crate::engine::objects::adapter::Adapter;
use crate::engine::objects::plan::FaultPlan;
use crate::engine::objects::qp::Qp;
use crate::engine::objects::served_by::ServedBy;
use abi::*;
use soft_semantics::faults::{Order, Rule, Statement};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Adapter {
    /// The place of a queue pair in the order of creation, from 1.
    pub(crate) fn next_qp_ordinal(&self) -> u32 {
        self.port.qps.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// The place of a completion queue in the order of creation, from 1.
    pub(crate) fn next_cq_ordinal(&self) -> u32 {
        self.port.cqs.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// At which of its completions a new queue is to overrun.
    pub(crate) fn planned_overrun(&self, cq: u32) -> Option<u64> {
        self.port.plan.lock().overrun_of(cq)
    }

    /// Does what was said before the process joined. Nobody has a device open yet, so the port is down from the beginning if it
    /// shall be, and no event says so.
    pub(crate) fn obey_first(&self, statements: &[Statement]) {
        self.obey(statements);
        self.follow_orders();
        // It may come up by itself: the service thread keeps the time.
        self.fabric.wake_self();
    }

    /// Does what a person said (`soft_semantics::faults::parse`).
    pub(crate) fn obey(&self, statements: &[Statement]) {
        for statement in statements {
            match *statement {
                Statement::Order(order) => self.order(order),
                Statement::Rule(rule) => self.add_rule(rule),
                Statement::Clear => self.forget_rules(),
                Statement::Overrun(overrun) => {
                    self.port.plan.lock().add_overrun(overrun);
                    self.each_cq(|cq| {
                        if overrun.cq.is_none_or(|only| only == cq.ordinal) {
                            cq.plan_overrun(Some(overrun.nth));
                        }
                    });
                    self.all_qps().iter().for_each(|qp| qp.await_acks());
                }
            }
        }
    }

    fn add_rule(&self, rule: Rule) {
        let mut plan = self.port.plan.lock();
        plan.add(rule);
        for qp in self.all_qps() {
            qp.requester.lock().take_plan(&plan, qp.ordinal, qp.kind);
            qp.await_acks();
        }
    }

    fn forget_rules(&self) {
        let mut plan = self.port.plan.lock();
        *plan = FaultPlan::default();
        let qps = self.all_qps();
        for qp in &qps {
            qp.requester.lock().drop_plan();
        }
        drop(plan);
        for qp in &qps {
            qp.advance_send();
        }
        self.each_cq(|cq| cq.plan_overrun(None));
    }

    /// Has the service thread carry out an order.
    pub(crate) fn order(&self, order: Order) {
        self.port.orders.lock().push_back(order);
        self.port.ordered.store(true, Ordering::Release);
        self.fabric.wake_self();
    }

    /// A new QP gets its share of the trouble there is.
    pub(crate) fn trouble(&self, qp: &Arc<Qp>) {
        {
            let plan = self.port.plan.lock();
            qp.requester.lock().take_plan(&plan, qp.ordinal, qp.kind);
            if !plan.is_empty() {
                // What goes wrong does so whether somebody polls or not.
                qp.await_acks();
            }
        }
        if self.port.is_down() {
            set_plugged(qp, false);
            // It may have come up before the QP was among those that are told.
            if !self.port.is_down() {
                set_plugged(qp, true);
            }
        }
    }

    /// For the service thread: carries out orders; returns when to look again.
    pub(crate) fn follow_orders(&self) -> Option<Duration> {
        if !self.port.ordered.load(Ordering::Acquire) && self.port.shown.lock().until.is_none() {
            return None;
        }
        let _one_at_a_time = self.port.carrying_out.lock();
        while self.port.ordered.swap(false, Ordering::AcqRel) {
            let orders = std::mem::take(&mut *self.port.orders.lock());
            for order in orders {
                self.carry_out(order);
            }
        }
        let until = self.port.shown.lock().until?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            self.show_port(false, None);
            return None;
        }
        Some(left)
    }

    fn carry_out(&self, order: Order) {
        match order {
            Order::PortDown(span) => {
                self.show_port(true, span.and_then(|span| Instant::now().checked_add(span)));
            }
            Order::PortUp => self.show_port(false, None),
            Order::PortEvent(event) => {
                if event == IBV_EVENT_GID_CHANGE {
                    self.read_interfaces();
                    self.publish_addresses();
                    self.wire.take_part_again(self);
                    // Who hears of it and looks finds the new table.
                    self.port.gid_changes.fetch_add(1, Ordering::Release);
                }
                self.port_event(event);
            }
            Order::DeviceFatal => {
                self.port_event(IBV_EVENT_DEVICE_FATAL);
                for qp in self.all_qps() {
                    qp.enter_error();
                }
            }
        }
    }

    /// Takes the port down, until then at the latest, or up.
    fn show_port(&self, down: bool, until: Option<Instant>) {
        let mut shown = self.port.shown.lock();
        shown.until = until;
        if std::mem::replace(&mut shown.down, down) == down {
            return;
        }
        // Before the queue pairs: one that is created meanwhile sees it, or is among them.
        self.port.set_down(down);
        let qps = self.all_qps();
        for qp in &qps {
            set_plugged(qp, !down);
        }
        self.port_event(if down { IBV_EVENT_PORT_ERR } else { IBV_EVENT_PORT_ACTIVE });
        for qp in &qps {
            qp.advance_receive(ServedBy::Library);
            qp.send_due_ack();
            qp.advance_send();
        }
    }

    /// Reports an event of the port, or of the device, to every context.
    fn port_event(&self, event: u32) {
        for channel in self.channels.lock().iter().filter_map(std::sync::Weak::upgrade) {
            if channel.is_asynchronous() {
                channel.send_record([1, u64::from(event)]);
            }
        }
    }
}

/// The port of a QP went down or up.
fn set_plugged(qp: &Qp, plugged: bool) {
    {
        let mut requester = qp.requester.lock();
        if plugged {
            requester.plug();
        } else {
            requester.unplug();
        }
    }
    qp.responder.lock().set_port(!plugged);
    qp.show_port();
}
