//! Reservations: create, update, activate, expire.

use std::collections::BTreeMap;

use super::cluster::{Cluster, Event};
use super::refusal::Refusal;
use super::reservation::Reservation;
use super::state::Flag;

impl Cluster {
    /// Creates or updates a reservation.
    pub fn reserve(&mut self, mut reservation: Reservation) -> Result<(), Refusal> {
        if reservation.name.is_empty() || (reservation.users.is_empty() && reservation.accounts.is_empty()) {
            return Err(Refusal::RESERVATION);
        }
        if reservation.nodes.iter().any(|name| !self.nodes.contains_key(name)) {
            return Err(Refusal::NODE_NAME);
        }
        if reservation.ends_at <= reservation.starts_at {
            return Err(Refusal::TIME);
        }
        let ignores = reservation.flags.iter().any(|flag| flag == "IGNORE_JOBS");
        let busy = |name: &String| self.nodes.get(name).is_some_and(|node| !node.jobs.is_empty());
        if !ignores && reservation.starts_at <= self.now && reservation.nodes.iter().any(busy) {
            return Err(Refusal::NODES_BUSY);
        }
        if !reservation.flags.iter().any(|flag| flag == "SPEC_NODES") {
            reservation.flags.push("SPEC_NODES".to_owned());
        }
        self.events.insert((reservation.starts_at, Event::ReservationTurns));
        self.events.insert((reservation.ends_at, Event::ReservationTurns));
        self.reservations.insert(reservation.name.clone(), reservation);
        self.turn_reservations();
        Ok(())
    }

    pub fn delete_reservation(&mut self, name: &str) -> Result<(), Refusal> {
        self.reservations.remove(name).ok_or(Refusal::RESERVATION)?;
        self.turn_reservations();
        Ok(())
    }

    /// Removes expired reservations and marks the nodes of active ones.
    pub(super) fn turn_reservations(&mut self) {
        let now = self.now;
        self.reservations.retain(|_, reservation| reservation.ends_at > now);
        let active = self.reservations.values().filter(|reservation| reservation.is_active(now));
        let holders: BTreeMap<String, (String, bool)> = active
            .flat_map(|one| one.nodes.iter().map(|node| (node.clone(), (one.name.clone(), one.is_maintenance()))))
            .collect();
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for name in names {
            let holder = holders.get(&name);
            let reservation = holder.map(|(name, _)| name.as_str()).unwrap_or_default();
            if self.nodes.get(&name).is_some_and(|node| node.reservation == reservation) {
                continue;
            }
            self.change(&name, |node| {
                reservation.clone_into(&mut node.reservation);
                node.state.set(Flag::Maintenance, holder.is_some_and(|(_, maintenance)| *maintenance));
                node.state.set(Flag::Reserved, holder.is_some_and(|(_, maintenance)| !maintenance));
            });
        }
        self.changed.reservations = now;
        self.schedule_due = true;
    }
}
