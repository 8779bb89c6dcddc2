//! slurmctld's configuration in memory.

use serde::de::MapAccess;
use serde_json::{Map, Value};

use super::envelope::Body;

/// Parameters of slurm.conf with their effective values. Since v0.0.45.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conf(pub Map<String, Value>);

impl Conf {
    /// Returns a parameter; the case of the name is ignored.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// Response body during decoding.
#[derive(Debug, Default)]
pub struct ConfAnswer(Option<Map<String, Value>>);

impl Body for ConfAnswer {
    type Output = Conf;

    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        if key == "slurm_conf" {
            self.0 = Some(map.next_value()?);
        }
        Ok(key == "slurm_conf")
    }

    fn finish(self) -> Result<Conf, &'static str> {
        self.0.map(Conf).ok_or("slurm_conf")
    }
}
