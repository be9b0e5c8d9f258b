//! The port of the adapter, and all orders: changes of the port, fault rules, events. Statements
//! arrive from `config` and `control`; the service thread executes orders one after the other
//! (`soft_semantics::faults`).

use crate::engine::adapter::Adapter;
use crate::engine::faults::plan::FaultPlan;
use crate::engine::queues::served_by::ServedBy;
use abi::*;
use soft_semantics::faults::{ImmediateFault, Rule, Statement};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Adapter {
    /// Executes the statements given before the process joined. No device is open yet, so the port
    /// may start down, without an event.
    pub(crate) fn obey_first(&self, statements: &[Statement]) {
        self.execute_statements(statements);
        self.follow_orders();
        // The port may come up by itself: the service thread keeps the time.
        self.fabric.wake_self();
    }

    /// Executes statements of the user (`soft_semantics::faults::parse`).
    pub(crate) fn execute_statements(&self, statements: &[Statement]) {
        for statement in statements {
            match *statement {
                Statement::ImmediateFault(order) => self.port.order(order, &self.fabric),
                Statement::Rule(rule) => self.add_rule(rule),
                Statement::Clear => self.forget_rules(),
                Statement::Overrun(overrun) => {
                    self.port.plan.lock().add_overrun(overrun);
                    self.registry.each_cq(|cq| {
                        if overrun.cq.is_none_or(|only| only == cq.ordinal) {
                            cq.plan_overrun(Some(overrun.nth));
                        }
                    });
                    self.registry.all_qps().iter().for_each(|qp| qp.await_acks());
                }
            }
        }
    }

    fn add_rule(&self, rule: Rule) {
        let mut plan = self.port.plan.lock();
        plan.add(rule);
        for qp in self.registry.all_qps() {
            qp.requester().lock().add_fault_rules(&plan, qp.ordinal(), qp.qp_type());
            qp.await_acks();
        }
    }

    fn forget_rules(&self) {
        let mut plan = self.port.plan.lock();
        *plan = FaultPlan::default();
        let qps = self.registry.all_qps();
        for qp in &qps {
            qp.requester().lock().drop_fault_rules();
        }
        drop(plan);
        for qp in &qps {
            qp.advance_send();
        }
        self.registry.each_cq(|cq| cq.plan_overrun(None));
    }

    /// Called by the service thread: executes orders. Returns the time until the next look.
    pub(crate) fn follow_orders(&self) -> Option<Duration> {
        if !self.port.ordered.load(Ordering::Acquire) && self.port.reported.lock().up_at.is_none() {
            return None;
        }
        let _one_at_a_time = self.port.carrying_out.lock();
        while self.port.ordered.swap(false, Ordering::AcqRel) {
            let orders = std::mem::take(&mut *self.port.orders.lock());
            for order in orders {
                self.carry_out(order);
            }
        }
        let until = self.port.reported.lock().up_at?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            self.show_port(false, None);
            return None;
        }
        Some(left)
    }

    fn carry_out(&self, order: ImmediateFault) {
        match order {
            ImmediateFault::PortDown(span) => {
                self.show_port(true, span.and_then(|span| Instant::now().checked_add(span)));
            }
            ImmediateFault::PortUp => self.show_port(false, None),
            ImmediateFault::PortEvent(event) => {
                if event == IBV_EVENT_GID_CHANGE {
                    self.read_interfaces();
                    self.publish_addresses();
                    self.wire_interfaces_changed();
                    // Incremented before the event: a program that reads the table after the event
                    // gets the new table.
                    self.port.gid_changes.fetch_add(1, Ordering::Release);
                }
                self.port_event(event);
            }
            ImmediateFault::DeviceFatal => {
                self.port_event(IBV_EVENT_DEVICE_FATAL);
                for qp in self.registry.all_qps() {
                    qp.enter_error();
                }
            }
        }
    }

    /// Takes the port down, until `until` at the latest, or up.
    fn show_port(&self, down: bool, until: Option<Instant>) {
        let mut shown = self.port.reported.lock();
        shown.up_at = until;
        if std::mem::replace(&mut shown.is_down, down) == down {
            return;
        }
        // Stored before the QPs are collected: a QP created meanwhile either reads the flag or is
        // in the list.
        self.port.set_down(down);
        let qps = self.registry.all_qps();
        for qp in &qps {
            qp.set_plugged(!down);
        }
        self.port_event(if down { IBV_EVENT_PORT_ERR } else { IBV_EVENT_PORT_ACTIVE });
        for qp in &qps {
            qp.advance_receive(ServedBy::Library);
            qp.send_due_ack();
            qp.advance_send();
        }
    }

    /// Reports an event of the port or the device to every context.
    fn port_event(&self, event: u32) {
        self.service.each_channel(|channel| {
            if channel.is_asynchronous() {
                channel.send_record([1, u64::from(event)]);
            }
        });
    }
}
