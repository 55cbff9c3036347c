//! A guide to the optimum without a solver: soft longest paths and multiplicative shares.
//!
//! Each sweep sends a unit of flow from source to sink, at every node in proportion to `exp(rest of the path / tau)`, raises the share of
//! edges by what they would spare under that flow, and scales senders and receivers back to 1. `tau` and the step fall
//! geometrically. Ours; a mirror-descent method on the program's saddle point.

use super::net::{NONE, Net, Stars};

/// Easing: temperature, step, most sweeps, and how many in a row may not take off a hundredth of what is too long.
const EASE_TEMPERATURE: f64 = 0.003;
const EASE_STEP: f64 = 0.01;
const EASE_SWEEPS: u32 = 40;
const EASE_IDLE: u32 = 10;

/// Where the sweeps ended.
#[derive(Debug, Clone, Default)]
pub struct Guide {
    /// A share per edge, within the limits of senders and receivers.
    pub y: Vec<f64>,
    /// Longest path under the shares.
    pub upper: f64,
    /// The mean flow of the later sweeps, per edge.
    pub flow: Vec<f64>,
    pub num_sweeps: u32,
}

impl Guide {
    /// The flow above which there are at most a `share` of the edges, and at least `floor`, unless that leaves no path from source to sink.
    #[must_use]
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn least_flow(&self, net: &Net, share: f64, floor: f64) -> f64 {
        let most = (self.flow.len() as f64 * share) as usize;
        let mut least = floor;
        if most < self.flow.len() {
            let mut flow = self.flow.clone();
            least = flow.select_nth_unstable_by(most, |a, b| b.total_cmp(a)).1.max(floor);
        }
        least.min(0.5 * self.widest_path(net))
    }

    /// The greatest flow that every edge of some path from source to sink has.
    fn widest_path(&self, net: &Net) -> f64 {
        let mut width = vec![0.0_f64; net.num_nodes];
        width[0] = 1.0;
        for (edge, flow) in net.edges.iter().zip(&self.flow) {
            let (tail, head) = (edge.tail as usize, edge.head as usize);
            width[head] = width[head].max(width[tail].min(*flow));
        }
        width[net.num_nodes - 1]
    }
}

/// Number of sweeps, and how temperature and step go from first to last.
#[derive(Debug, Clone, Copy)]
pub struct Sweeps {
    pub count: u32,
    pub temperature: (f64, f64),
    pub step: (f64, f64),
}

impl Sweeps {
    /// The schedule that was measured.
    #[must_use]
    pub fn of(count: u32) -> Self {
        Self { count, temperature: (0.3, 0.003), step: (0.3, 0.005) }
    }
}

/// Runs the sweeps, or as many as there is time for. O(edges) each.
#[must_use]
pub fn guide(net: &Net, sweeps: Sweeps, expired: &dyn Fn() -> bool) -> Guide {
    let stars = net.stars();
    let mut y = even_shares(net, &stars);
    let mut guide = Guide { upper: f64::INFINITY, ..Guide::default() };
    let mut flow = vec![0.0; net.edges.len()];
    let mut mean = vec![0.0; net.edges.len()];
    let mut weight = 0.0;
    let mut state = State::of(net, &stars);
    let room = Room::all(&stars);
    let scale = mean_length(net);
    for sweep in 0..sweeps.count {
        let progress = f64::from(sweep) / f64::from(sweeps.count.max(2) - 1);
        let between = |(first, last): (f64, f64)| first * (last / first).powf(progress);
        let temperature = scale * between(sweeps.temperature);
        let value = state.send(net, &y, temperature, &mut flow);
        if value < guide.upper {
            guide.upper = value;
            guide.y.clone_from(&y);
        }
        if progress >= 0.5 {
            weight += 1.0;
            for (mean, flow) in mean.iter_mut().zip(&flow) {
                *mean += flow;
            }
        }
        state.raise(net, &stars, &room, &flow, between(sweeps.step), &mut y);
        guide.num_sweeps += 1;
        if expired() {
            break;
        }
    }
    let last = net.value(&y);
    if last < guide.upper {
        (guide.upper, guide.y) = (last, y);
    }
    guide.flow = flow;
    if weight > 0.0 {
        guide.flow = mean.into_iter().map(|sum| sum / weight).collect();
    }
    guide
}

/// Shortens paths beyond `target` by a few sweeps over the shares that are not `firm`; returns the longest path.
///
/// What firm shares take of senders and receivers is not available. O(edges) a sweep.
#[must_use]
pub fn ease(
    net: &Net,
    firm: &[bool],
    target: f64,
    y: &mut Vec<f64>,
    expired: &dyn Fn() -> bool,
) -> f64 {
    let mut stars = net.stars();
    let mut room = Room::all(&stars);
    for at in (0..firm.len()).filter(|at| firm[*at]) {
        if stars.sender[at] != NONE {
            room.at_sender[stars.sender[at] as usize] -= y[at];
            room.at_receiver[stars.receiver[at] as usize] -= y[at];
        }
        (stars.sender[at], stars.receiver[at]) = (NONE, NONE);
    }
    let mut state = State::of(net, &stars);
    let mut flow = vec![0.0; net.edges.len()];
    let temperature = EASE_TEMPERATURE * mean_length(net);
    let mut best = (net.value(y), y.clone());
    let mut num_idle = 0;
    for _ in 0..EASE_SWEEPS {
        let value = state.send(net, y, temperature, &mut flow);
        num_idle = if value - target < 0.99 * (best.0 - target) { 0 } else { num_idle + 1 };
        if value < best.0 {
            best.0 = value;
            best.1.clone_from(y);
        }
        if value <= target || num_idle > EASE_IDLE || expired() {
            break;
        }
        state.raise(net, &stars, &room, &flow, EASE_STEP, y);
    }
    *y = best.1;
    best.0
}

/// What the shares of a sender and of a receiver may add up to.
struct Room {
    at_sender: Vec<f64>,
    at_receiver: Vec<f64>,
}

impl Room {
    fn all(stars: &Stars) -> Self {
        Self {
            at_sender: vec![1.0; stars.num_senders],
            at_receiver: vec![1.0; stars.num_receivers],
        }
    }
}

struct State {
    /// Soft and hard longest path to the sink per node, what passes a node.
    soft: Vec<f64>,
    hard: Vec<f64>,
    through: Vec<f64>,
    sent: Vec<f64>,
    received: Vec<f64>,
}

impl State {
    fn of(net: &Net, stars: &Stars) -> Self {
        Self {
            soft: vec![0.0; net.num_nodes],
            hard: vec![0.0; net.num_nodes],
            through: vec![0.0; net.num_nodes],
            sent: vec![0.0; stars.num_senders],
            received: vec![0.0; stars.num_receivers],
        }
    }

    /// The soft flow under the shares; returns the longest path.
    fn send(&mut self, net: &Net, y: &[f64], temperature: f64, flow: &mut [f64]) -> f64 {
        let per_temperature = 1.0 / temperature;
        for node in (0..net.num_nodes - 1).rev() {
            let out = net.out_of(node);
            let (mut hard, mut soft) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
            for at in out.clone() {
                let edge = &net.edges[at];
                let length = edge.fixed + edge.cost * (1.0 - y[at]);
                let rest = length + self.soft[edge.head as usize];
                flow[at] = rest;
                soft = soft.max(rest);
                hard = hard.max(length + self.hard[edge.head as usize]);
            }
            self.hard[node] = hard;
            if out.len() == 1 {
                flow[out.start] = 1.0;
                self.soft[node] = soft;
                continue;
            }
            let mut total = 0.0;
            for share in &mut flow[out.clone()] {
                let below = (*share - soft) * per_temperature;
                *share = if below > -40.0 { below.exp() } else { 0.0 };
                total += *share;
            }
            for share in &mut flow[out] {
                *share /= total;
            }
            self.soft[node] = soft + temperature * total.ln();
        }
        self.through.fill(0.0);
        self.through[0] = 1.0;
        for (edge, flow) in net.edges.iter().zip(flow) {
            *flow *= self.through[edge.tail as usize];
            self.through[edge.head as usize] += *flow;
        }
        self.hard[0]
    }

    /// Raises the shares along the flow.
    fn raise(
        &mut self,
        net: &Net,
        stars: &Stars,
        room: &Room,
        flow: &[f64],
        step: f64,
        y: &mut [f64],
    ) {
        self.sent.fill(0.0);
        self.received.fill(0.0);
        for (at, edge) in net.edges.iter().enumerate() {
            let (from, to) = (stars.sender[at], stars.receiver[at]);
            if from != NONE {
                let worth = edge.cost * flow[at];
                self.sent[from as usize] = self.sent[from as usize].max(worth);
                self.received[to as usize] = self.received[to as usize].max(worth);
            }
        }
        for (at, edge) in net.edges.iter().enumerate() {
            let (from, to) = (stars.sender[at], stars.receiver[at]);
            if from != NONE {
                let worth = edge.cost * flow[at];
                let most = self.sent[from as usize].max(self.received[to as usize]);
                if worth > 1e-3 * most && most > 1e-100 {
                    y[at] = y[at].max(1e-6) * (step * worth / most).exp();
                }
            }
        }
        for _ in 0..2 {
            scale_back(&stars.sender, &room.at_sender, &mut self.sent, y);
            scale_back(&stars.receiver, &room.at_receiver, &mut self.received, y);
        }
    }
}

fn scale_back(star: &[u32], room: &[f64], total: &mut [f64], y: &mut [f64]) {
    total.fill(0.0);
    for (star, share) in star.iter().zip(&*y) {
        if *star != NONE {
            total[*star as usize] += share;
        }
    }
    for (star, share) in star.iter().zip(y) {
        if *star != NONE && total[*star as usize] > room[*star as usize] {
            *share *= room[*star as usize].max(0.0) / total[*star as usize];
        }
    }
}

fn even_shares(net: &Net, stars: &Stars) -> Vec<f64> {
    let mut sent = vec![0.0_f64; stars.num_senders];
    let mut received = vec![0.0_f64; stars.num_receivers];
    for at in (0..net.edges.len()).filter(|at| stars.sender[*at] != NONE) {
        sent[stars.sender[at] as usize] += 1.0;
        received[stars.receiver[at] as usize] += 1.0;
    }
    let even = |at: usize| match stars.sender[at] {
        NONE => 0.0,
        from => 1.0 / sent[from as usize].max(received[stars.receiver[at] as usize]),
    };
    (0..net.edges.len()).map(even).collect()
}

/// Mean length of the edges that have any.
fn mean_length(net: &Net) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for edge in net.edges.iter().filter(|edge| edge.longest() > 0.0) {
        sum += edge.longest();
        count += 1.0;
    }
    if count > 0.0 { sum / count } else { 1.0 }
}
