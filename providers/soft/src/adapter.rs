//! Joins the fabric: makes the adapter of a process, and the first fields of its segments. Every
//! entry point starts here; `rounds` is the service thread, and `engine` does the work. Fields:
//! `engine/adapter/mod.rs`.

use crate::attention::Attention;
use crate::engine::adapter::port::{Interfaces, Port, UnreachableReports};
use crate::engine::adapter::registry::Registry;
use crate::engine::adapter::service::Service;
use crate::engine::adapter::{Adapter, Groups, Steering};
use crate::engine::datagram::Datagrams;
use crate::engine::keys::domains::{Domains, has_borrowed};
use crate::engine::keys::in_flight::OperationsInFlight;
use crate::engine::keys::regions::Regions;
use crate::engine::keys::windows::Windows;
use crate::engine::ring::helping_state::Helping;
use crate::guid::AdapterGuid;
use crate::identity::Identity;
use crate::rounds::Rounds;
use soft_local::fabric::{Fabric, FabricConfig, FabricError, Handler};
use soft_local::shm::chunks::Chunks;
use soft_local::shm::layout::{MAGIC, RINGS_LEN, TABLES_LEN};
use soft_local::shm::view::{View, look_at};
use soft_memory::guard;
use soft_sys::membarrier;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Writes each field of an [`Adapter`] to `place`, which has room for one. A missing field does not
/// compile.
macro_rules! fill {
    ($place:ident, { $($(#[$attribute:meta])* $field:ident: $value:expr,)* }) => {
        let _all_fields = |adapter: Adapter| {
            let Adapter { $($(#[$attribute])* $field: _,)* } = adapter;
        };
        $(
            $(#[$attribute])*
            {
                let value = $value;
                // SAFETY: the caller's memory for an adapter, which has this field.
                unsafe { (&raw mut (*$place).$field).write(value) };
            }
        )*
    };
}

impl Adapter {
    /// Joins the fabric.
    ///
    /// # Errors
    /// The errors of the fabric, as a line of text with a remedy.
    pub(crate) fn join(config: FabricConfig) -> Result<Arc<Self>, FabricError> {
        guard::arm();
        // Registered before the fabric starts its thread: in a process with several threads the
        // kernel waits some milliseconds for all processors.
        let needs_fence = !membarrier::register();
        let rounds = Arc::new(Rounds::default());
        let handler: Arc<dyn Handler> = rounds.clone();
        let identity = Identity::new(AdapterGuid::of(&config));
        let fabric = Fabric::join(config, TABLES_LEN, RINGS_LEN, handler)?;
        let adapter = Self::with_fabric(fabric, identity, needs_fence);
        if let Ok(own) = adapter.fabric.peer(adapter.fabric.slot()) {
            adapter.datagrams.add_peer(&own, &adapter.view);
        }
        adapter.follow_interfaces();
        adapter.publish_addresses();
        // Processes that met us before now were not heard. Twice is harmless for those in between.
        rounds.begin(&adapter);
        adapter.fabric.for_each_peer(|peer| adapter.datagrams.add_peer(peer, &adapter.view));
        Ok(adapter)
    }

    /// The adapter over a fabric that the process has joined. A function of its own, because the
    /// new adapter takes much of the stack for a moment, and so do other parts of [`Self::join`].
    #[inline(never)]
    fn with_fabric(fabric: Arc<Fabric>, identity: Identity, needs_fence: bool) -> Arc<Self> {
        // SAFETY: the fabric mapped both segments with these lengths. The adapter keeps the fabric,
        // and every copy of the view keeps the adapter.
        let view = unsafe { View::new(fabric.tables().base(), fabric.rings().base()) };
        view.tables_head().magic.store(MAGIC, Ordering::Relaxed);
        view.rings_head().magic.store(MAGIC, Ordering::Relaxed);
        view.tables_head().needs_fence.store(u32::from(needs_fence), Ordering::Relaxed);
        let helping = Helping::new(view, &fabric);
        if !crate::config::helps() {
            helping.disable();
        }
        let mut adapter = Box::<Self>::new_uninit();
        let place = adapter.as_mut_ptr();
        // One field after the other, in the box: as one value the adapter would lie on the stack
        // once or twice, depending on the compiler.
        fill!(place, {
            view: view,
            identity: identity,
            registry: Registry::new(fabric.slot(), crate::config::low_qps()),
            service: Service::new(Arc::clone(&fabric)),
            domains: Domains::new(view, fabric.slot()),
            regions: Regions::new(view, crate::config::keys_are_distinct()),
            windows: Windows::new(view),
            chunks: Chunks::new(),
            in_flight: OperationsInFlight::new(view),
            helping: helping,
            attention: Attention::new(view, Arc::clone(&fabric)),
            datagrams: Datagrams::default(),
            groups: Groups::new(view),
            steering: Steering::new(view),
            port: Port::default(),
            interfaces: Interfaces::default(),
            wire: Box::default(),
            unreachable: UnreachableReports::default(),
            xrc: Box::default(),
            fabric: fabric,
        });
        // SAFETY: `fill` has written every field.
        Arc::<Self>::from(unsafe { adapter.assume_init() })
    }

    /// Ends a domain. Returns false if this process, or a living process that imported it, has
    /// objects in it.
    pub(crate) fn remove_domain(&self, number: u32) -> bool {
        self.domains.remove(number, || {
            // An importer has connected to this process; its last message makes it a known peer
            // here.
            self.fabric.accept_pending_peers();
            let mut borrowed = false;
            self.fabric.for_each_peer(|peer| {
                let has_borrowed = look_at(peer, |view| has_borrowed(view, number));
                borrowed |= has_borrowed && self.fabric.is_occupied(peer.slot);
            });
            borrowed
        })
    }
}
