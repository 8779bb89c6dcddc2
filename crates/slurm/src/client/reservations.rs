//! Calls about reservations.

use super::{Answer, Call, Client, Error, transport::Request};
use crate::wire::{Listing, Nothing, Reservation, ReservationSpec};

impl Client {
    /// Lists all reservations.
    pub async fn reservations(&self) -> Result<Answer<Listing<Reservation>>, Error> {
        self.list(Call::Reservations).await
    }

    /// Returns one reservation.
    pub async fn reservation(&self, name: &str) -> Result<Answer<Reservation>, Error> {
        self.first(Call::Reservation, name).await
    }

    /// Creates or updates a reservation. Since v0.0.43.
    pub async fn write_reservation(&self, reservation: &ReservationSpec) -> Result<Answer<()>, Error> {
        let request = Request { name: Some(reservation.name().to_owned()), ..Request::new(Call::WriteReservation) };
        self.ask::<Nothing>(request.body(reservation)?).await
    }

    /// Deletes a reservation. Since v0.0.43.
    pub async fn delete_reservation(&self, name: &str) -> Result<Answer<()>, Error> {
        self.ask::<Nothing>(Request::named(Call::DeleteReservation, name)).await
    }
}
