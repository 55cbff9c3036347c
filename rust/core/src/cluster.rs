//! Devices and the links between them; `transfer_ns` is the only place where bytes become time.

use crate::error::{Error, Result};
use crate::{Bytes, DeviceId, Ns};

/// Columns a cluster is made of, for one graph: kinds and allowed sets are that graph's.
#[derive(Debug, Clone, Default)]
pub struct Columns {
    pub memory_bytes: Vec<Bytes>,
    pub reserve_bytes: Vec<Bytes>,
    /// Row of the graph's compute times that holds for each device.
    pub kind: Vec<i32>,
    pub speed: Vec<f64>,
    /// `num_devices x num_devices`, source by destination.
    pub latency_ns: Vec<Ns>,
    /// Bytes per second of each link, 0 for infinitely fast.
    pub bytes_per_s: Vec<i64>,
    /// Channel each link sends through, -1 for unlimited.
    pub send_channel: Vec<i32>,
    pub recv_channel: Vec<i32>,
    /// `num_sets x num_devices`, nonzero where the graph's set allows the device.
    pub allowed: Vec<u8>,
}

/// An immutable cluster.
#[derive(Debug, Clone)]
pub struct Cluster {
    pub columns: Columns,
    pub num_devices: usize,
    pub num_channels: usize,
    pub num_sets: usize,
    /// Memory minus reserve of each device: what a plan may use.
    pub cap_bytes: Vec<Bytes>,
}

/// The channels of one link; -1 where it has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channels {
    pub send: i32,
    pub recv: i32,
}

impl Channels {
    /// Whether transfers over the link never wait for each other.
    #[must_use]
    pub fn unlimited(self) -> bool {
        self.send < 0 && self.recv < 0
    }
}

impl Cluster {
    /// Checks the columns.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Value`] for a bad column.
    pub fn new(columns: Columns) -> Result<Self> {
        let num_devices = columns.memory_bytes.len();
        if num_devices == 0 || num_devices > 1 << 15 {
            return Err(Error::Shape { what: "devices", expected: 1, found: num_devices });
        }
        let pairs = num_devices * num_devices;
        let num_sets = columns.allowed.len() / num_devices;
        let lengths = [
            ("reserve_bytes", columns.reserve_bytes.len(), num_devices),
            ("kind", columns.kind.len(), num_devices),
            ("speed", columns.speed.len(), num_devices),
            ("latency_ns", columns.latency_ns.len(), pairs),
            ("bytes_per_s", columns.bytes_per_s.len(), pairs),
            ("send_channel", columns.send_channel.len(), pairs),
            ("recv_channel", columns.recv_channel.len(), pairs),
            ("allowed", columns.allowed.len(), num_sets * num_devices),
        ];
        for (what, found, expected) in lengths {
            if found != expected {
                return Err(Error::Shape { what, expected, found });
            }
        }
        let nonnegative = [
            ("memory_bytes", &columns.memory_bytes),
            ("reserve_bytes", &columns.reserve_bytes),
            ("latency_ns", &columns.latency_ns),
            ("bytes_per_s", &columns.bytes_per_s),
        ];
        for (what, column) in nonnegative {
            if let Some(index) = column.iter().position(|value| *value < 0) {
                return Err(Error::Value { what, index, value: column[index] });
            }
        }
        if let Some(index) = columns.speed.iter().position(|s| !s.is_finite() || *s <= 0.0) {
            return Err(Error::Value { what: "speed", index, value: 0 });
        }
        let channels = columns.send_channel.iter().chain(&columns.recv_channel);
        let most = channels.max().and_then(|most| usize::try_from(*most).ok());
        let num_channels = most.map_or(0, |most| most + 1);
        if num_channels > 4 * pairs {
            let what = "channel numbers";
            return Err(Error::Shape { what, expected: 4 * pairs, found: num_channels });
        }
        // A negative cap keeps everything out, however negative it is; the originals' callers may give one.
        let cap = |(memory, reserve): (&i64, &i64)| (memory - reserve).clamp(-1, crate::UNLIMITED);
        let cap_bytes = columns.memory_bytes.iter().zip(&columns.reserve_bytes).map(cap).collect();
        Ok(Self { columns, num_devices, num_channels, num_sets, cap_bytes })
    }

    /// Time to move `bytes` over a link: latency plus bytes over bandwidth, rounded up exactly; at most `UNLIMITED`.
    #[must_use]
    pub fn transfer_ns(&self, bytes: Bytes, source: DeviceId, destination: DeviceId) -> Ns {
        let link = self.link(source, destination);
        let wire = wire_ns(bytes, self.columns.bytes_per_s[link]);
        self.columns.latency_ns[link].saturating_add(wire).min(crate::UNLIMITED)
    }

    /// The channels that a link uses.
    #[must_use]
    pub fn channels(&self, source: DeviceId, destination: DeviceId) -> Channels {
        let link = self.link(source, destination);
        Channels { send: self.columns.send_channel[link], recv: self.columns.recv_channel[link] }
    }

    /// Links that may be the fastest for some tensor, by latency: no other has less of it and as much bandwidth.
    #[must_use]
    pub fn best_links(&self) -> Vec<(DeviceId, DeviceId)> {
        let devices = 0..u32::try_from(self.num_devices).expect("checked to fit 15 bits");
        let links = devices.clone().flat_map(|from| devices.clone().map(move |to| (from, to)));
        let figures = links.filter(|(from, to)| from != to).map(|(from, to)| {
            let link = self.link(from, to);
            let rate = self.columns.bytes_per_s[link];
            let rate = if rate == 0 { i64::MAX } else { rate };
            (self.columns.latency_ns[link], std::cmp::Reverse(rate), (from, to))
        });
        let mut figures: Vec<_> = figures.collect();
        figures.sort_unstable();
        let mut fastest = 0;
        figures.retain(|(_, rate, _)| {
            let is_faster = rate.0 > fastest;
            fastest = fastest.max(rate.0);
            is_faster
        });
        figures.into_iter().map(|(_, _, link)| link).collect()
    }

    fn link(&self, source: DeviceId, destination: DeviceId) -> usize {
        source as usize * self.num_devices + destination as usize
    }
}

/// `ceil(bytes * 10^9 / bytes_per_s)`, saturated far beyond any schedule.
fn wire_ns(bytes: Bytes, bytes_per_s: i64) -> Ns {
    if bytes == 0 || bytes_per_s == 0 {
        return 0;
    }
    let bytes = bytes.unsigned_abs();
    let rate = bytes_per_s.unsigned_abs();
    if let Some(product) = bytes.checked_mul(1_000_000_000) {
        let exact = i64::try_from(product.div_ceil(rate));
        return exact.map_or(crate::UNLIMITED, |ns| ns.min(crate::UNLIMITED));
    }
    let exact = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(rate));
    i64::try_from(exact).map_or(crate::UNLIMITED, |ns| ns.min(crate::UNLIMITED))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Equal devices of one kind with one link figure; channels as `serial`, `duplex` or `parallel`.
    pub(crate) fn cluster(
        caps: &[Bytes],
        latency_ns: Ns,
        bytes_per_s: i64,
        channels: &str,
    ) -> Cluster {
        let num_devices = caps.len();
        let side = i32::try_from(num_devices).unwrap();
        let mut send_channel = Vec::new();
        let mut recv_channel = Vec::new();
        for source in 0..side {
            for destination in 0..side {
                let (send, recv) = match channels {
                    "serial" => (source, destination),
                    "duplex" => (2 * source, 2 * destination + 1),
                    _ => (-1, -1),
                };
                send_channel.push(send);
                recv_channel.push(recv);
            }
        }
        Cluster::new(Columns {
            memory_bytes: caps.to_vec(),
            reserve_bytes: vec![0; num_devices],
            kind: vec![0; num_devices],
            speed: vec![1.0; num_devices],
            latency_ns: vec![latency_ns; num_devices * num_devices],
            bytes_per_s: vec![bytes_per_s; num_devices * num_devices],
            send_channel,
            recv_channel,
            allowed: Vec::new(),
        })
        .expect("a valid cluster")
    }

    #[test]
    fn transfer_times_round_up_exactly() {
        let cluster = cluster(&[0, 0], 10, 3_000_000_000, "parallel");
        assert_eq!(cluster.transfer_ns(0, 0, 1), 10);
        assert_eq!(cluster.transfer_ns(1, 0, 1), 11);
        assert_eq!(cluster.transfer_ns(3, 0, 1), 11);
        assert_eq!(cluster.transfer_ns(4, 0, 1), 12);
        assert_eq!(cluster.transfer_ns(3_000_000_000_000, 0, 1), 10 + 1_000_000_000_000);
    }

    #[test]
    fn an_infinitely_fast_link_costs_its_latency() {
        assert_eq!(cluster(&[0, 0], 7, 0, "serial").transfer_ns(1 << 40, 0, 1), 7);
    }

    #[test]
    fn transfer_times_stop_at_unlimited_and_never_wrap() {
        let slow = |latency| cluster(&[0, 0], latency, 1, "serial");
        assert_eq!(slow(5).transfer_ns(9, 0, 1), 9_000_000_005);
        assert_eq!(slow(5).transfer_ns(9_000_000_000, 0, 1), crate::UNLIMITED);
        assert_eq!(slow(5).transfer_ns(1 << 59, 0, 1), crate::UNLIMITED);
        assert_eq!(slow(i64::MAX).transfer_ns(1 << 59, 0, 1), crate::UNLIMITED);
    }

    #[test]
    fn the_greatest_channel_number_is_refused_and_not_wrapped() {
        let mut columns = cluster(&[0, 0], 0, 0, "serial").columns;
        columns.send_channel[1] = i32::MAX;
        let what = "channel numbers";
        assert!(matches!(Cluster::new(columns), Err(Error::Shape { what: w, .. }) if w == what));
    }

    #[test]
    fn no_reserve_makes_a_cap_that_sums_could_wrap_on() {
        let mut columns = cluster(&[5, i64::MAX], 0, 0, "serial").columns;
        columns.reserve_bytes[0] = i64::MAX;
        assert_eq!(Cluster::new(columns).unwrap().cap_bytes, [-1, crate::UNLIMITED]);
    }

    #[test]
    fn a_cluster_without_devices_is_refused() {
        assert!(matches!(
            Cluster::new(Columns::default()),
            Err(Error::Shape { what: "devices", .. })
        ));
    }
}
