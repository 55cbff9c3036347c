// Test-only PrivateUse1 backend: N "devices" that all live in host memory.
// Real numerics, real autograd, real "two devices" errors, per-device byte counts and caps.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
namespace {
constexpr int MAXD = 16;
int g_n = 4;
thread_local int t_cur = 0;
std::array<std::atomic<int64_t>, MAXD> g_used{}, g_peak{}, g_cap{}, g_ops{}, g_in_bytes{};
std::atomic<int64_t> g_copies{0};
void charge(int d, int64_t n) {
  int64_t u = (g_used[d] += n);
  int64_t p = g_peak[d];
  while (u > p && !g_peak[d].compare_exchange_weak(p, u)) {
  }
  int64_t c = g_cap[d];
  if (c > 0 && n > 0 && u > c) {
    g_used[d] -= n;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "vdev out of memory. Tried to allocate ", n,
                     " bytes on vdev:", d, " (cap ", c, ", in use ", u - n, ")");
  }
}
struct Ctx {
  void* p;
  int d;
  int64_t n;
};
void del(void* c) {
  auto* x = (Ctx*)c;
  g_used[x->d] -= x->n;
  std::free(x->p);
  delete x;
}
struct Alloc final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    int d = t_cur;
    charge(d, n);
    void* p = nullptr;
    if (n) TORCH_CHECK(posix_memalign(&p, 64, (n + 63) / 64 * 64) == 0);
    return {p, new Ctx{p, d, (int64_t)n}, &del, c10::Device(c10::DeviceType::PrivateUse1, d)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* d, const void* s, std::size_t n) const override { default_copy_data(d, s, n); }
} g_alloc;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &g_alloc);
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::DeviceType::PrivateUse1;
  c10::DeviceType type() const override { return static_type; }
  c10::Device exchangeDevice(c10::Device d) const override {
    auto o = getDevice();
    t_cur = d.index();
    return o;
  }
  c10::Device getDevice() const override { return {static_type, (c10::DeviceIndex)t_cur}; }
  void setDevice(c10::Device d) const override {
    TORCH_CHECK(d.index() < g_n, "invalid device ordinal");
    t_cur = d.index();
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override { t_cur = d.index(); }
  c10::Stream getStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getNewStream(c10::Device d, int) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    return c10::Stream(c10::Stream::DEFAULT, s.device());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return g_n; }
  // Everything runs at once, so an event is the time at which it was recorded.
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new std::chrono::steady_clock::time_point;
    *(std::chrono::steady_clock::time_point*)*event = std::chrono::steady_clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete (std::chrono::steady_clock::time_point*)event;
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    using Time = std::chrono::steady_clock::time_point;
    return std::chrono::duration<double, std::milli>(*(Time*)to - *(Time*)from).count();
  }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);
struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return g_n; }
  c10::DeviceIndex getCurrentDevice() const override { return t_cur; }
  void setCurrentDevice(c10::DeviceIndex d) const override { t_cur = d; }
};
struct DG {
  int o;
  explicit DG(int d) : o(t_cur) { t_cur = d; }
  ~DG() { t_cur = o; }
};
at::Tensor empty_mf(c10::SymIntArrayRef size, std::optional<at::ScalarType> dt, std::optional<at::Layout>,
                    std::optional<at::Device> dev, std::optional<bool>, std::optional<at::MemoryFormat> mf) {
  int d = dev && dev->has_index() ? dev->index() : t_cur;
  DG g(d);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &g_alloc,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dt.value_or(at::get_default_dtype_as_scalartype()), mf);
}
at::Tensor empty_str(c10::SymIntArrayRef size, c10::SymIntArrayRef st, std::optional<at::ScalarType> dt,
                     std::optional<at::Layout>, std::optional<at::Device> dev, std::optional<bool>) {
  int d = dev && dev->has_index() ? dev->index() : t_cur;
  DG g(d);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(st),
                                           &g_alloc, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dt.value_or(at::get_default_dtype_as_scalartype()));
}
bool mine(const at::Tensor& t) { return t.defined() && t.device().type() == c10::DeviceType::PrivateUse1; }
// CPU tensor over the same bytes as a vdev tensor
at::Tensor cpu_of(const at::Tensor& t) {
  if (!mine(t)) return t;
  auto st = t.storage();
  int64_t nb = st.nbytes();
  at::Storage cs(c10::Storage::use_byte_size_t(), nb,
                 at::DataPtr(const_cast<void*>(st.data()), c10::Device(c10::kCPU)), nullptr, false);
  at::Tensor r = at::detail::make_tensor<c10::TensorImpl>(
      std::move(cs), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  r.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.is_conj()) r._set_conj(true);
  if (t.is_neg()) r._set_neg(true);
  return r;
}
// fresh vdev tensor holding a copy of a cpu result (keeps strides)
at::Tensor wrap(const at::Tensor& c, int d) {
  if (!c.defined()) return c;
  DG g(d);
  at::Tensor r = at::detail::empty_strided_generic(
      c.sizes(), c.strides(), &g_alloc, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c.scalar_type());
  cpu_of(r).copy_(c);
  return r;
}
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto& schema = op.schema();
  auto na = schema.arguments().size();
  auto base = stack->size() - na;
  int dev = -1;
  const char* nm = schema.name().c_str();
  auto see = [&](const at::Tensor& t) {
    if (!t.defined()) return;
    if (mine(t)) {
      if (dev < 0)
        dev = t.device().index();
      else
        TORCH_CHECK(dev == t.device().index(),
                    "Expected all tensors to be on the same device, but found at least two devices, vdev:",
                    dev, " and vdev:", (int)t.device().index(), "! (op ", nm, ")");
    }
  };
  std::vector<std::pair<size_t, at::Tensor>> orig;
  std::vector<std::pair<size_t, std::vector<at::Tensor>>> lists;
  bool cpu_big = false;
  at::Device want(c10::kCPU);
  bool has_dev = false;
  for (size_t i = 0; i < na; ++i) {
    auto& v = (*stack)[base + i];
    if (v.isTensor()) {
      auto t = v.toTensor();
      see(t);
      if (t.defined() && !mine(t) && t.dim() > 0) cpu_big = true;
      orig.emplace_back(i, t);
    } else if (v.isTensorList()) {
      auto l = v.toTensorVector();
      for (auto& t : l) {
        see(t);
        if (t.defined() && !mine(t) && t.dim() > 0) cpu_big = true;
      }
      lists.emplace_back(i, l);
    } else if (v.isOptionalTensorList()) {
      auto l = v.toOptionalTensorVector();
      for (auto& t : l)
        if (t) see(*t);
    } else if (v.isDevice()) {
      want = v.toDevice();
      has_dev = true;
      v = c10::IValue(c10::Device(c10::kCPU));
    }
  }
  if (dev < 0) dev = has_dev && want.has_index() ? want.index() : t_cur;
  bool idx_op = schema.name() == "aten::index" || schema.name() == "aten::_index_put_impl_" ||
                schema.name() == "aten::index_put_";
  TORCH_CHECK(!cpu_big || idx_op,
              "Expected all tensors to be on the same device, but found at least two devices, vdev:", dev,
              " and cpu! (op ", nm, ")");
  g_ops[dev]++;
  std::vector<at::Tensor> cpus(orig.size());
  for (size_t k = 0; k < orig.size(); ++k) {
    auto ai = schema.arguments()[orig[k].first].alias_info();
    if (mine(orig[k].second) && ai && ai->isWrite() && orig[k].second.numel() == 0)
      cpus[k] = at::empty({0}, at::TensorOptions().dtype(orig[k].second.scalar_type()));
    else
      cpus[k] = cpu_of(orig[k].second);
    (*stack)[base + orig[k].first] = cpus[k];
  }
  std::vector<std::vector<at::Tensor>> cl;
  for (auto& p : lists) {
    std::vector<at::Tensor> c;
    for (auto& t : p.second) c.push_back(cpu_of(t));
    cl.push_back(c);
    (*stack)[base + p.first] = c10::IValue(c);
  }
  for (size_t i = 0; i < na; ++i) {
    auto& v = (*stack)[base + i];
    if (v.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> c;
      for (auto& t : v.toOptionalTensorVector())
        c.push_back(t ? std::optional<at::Tensor>(cpu_of(*t)) : std::nullopt);
      v = c;
    }
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  auto fix_mut = [&](const at::Tensor& o,
                     const at::Tensor& c) {  // an out= / in-place argument that was resized on the cpu side
    if (mine(o) && (o.sizes() != c.sizes() || c.storage().data() != o.storage().data())) {
      auto w = wrap(c, o.device().index());
      auto* im = o.unsafeGetTensorImpl();
      im->set_storage_keep_dtype(w.storage());
      im->set_sizes_and_strides(w.sizes(), w.strides(), w.storage_offset());
    }
  };
  for (size_t k = 0; k < orig.size(); ++k) {
    auto ai = schema.arguments()[orig[k].first].alias_info();
    if (ai && ai->isWrite()) fix_mut(orig[k].second, cpus[k]);
  }
  auto nr = schema.returns().size();
  auto rb = stack->size() - nr;
  auto conv = [&](const at::Tensor& t) -> at::Tensor {
    if (!t.defined()) return t;
    for (size_t k = 0; k < orig.size(); ++k)
      if (mine(orig[k].second)) {
        if (t.is_same(cpus[k])) return orig[k].second;
        if (t.storage().data() && t.storage().data() == cpus[k].storage().data()) {  // a view of an input
          auto& o = orig[k].second;
          at::Tensor r = at::detail::make_tensor<c10::TensorImpl>(
              c10::TensorImpl::VIEW, c10::Storage(o.storage()), o.key_set(), t.dtype());
          r.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
          return r;
        }
      }
    return wrap(t, dev);
  };
  for (size_t i = 0; i < nr; ++i) {
    auto& v = (*stack)[rb + i];
    if (v.isTensor())
      v = conv(v.toTensor());
    else if (v.isTensorList()) {
      std::vector<at::Tensor> o;
      for (auto& t : v.toTensorVector()) o.push_back(conv(t));
      v = c10::IValue(o);
    }
  }
}
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool) {
  if (mine(dst) && (!mine(self) || self.device() != dst.device())) {
    g_copies++;
    g_in_bytes[dst.device().index()] += self.nbytes();
  }
  cpu_of(dst).copy_(cpu_of(self));
  return dst;
}
at::Tensor copy_from_resize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}
const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  auto sz = C10_AS_INTARRAYREF_SLOW(size);
  int64_t need = c10::multiply_integers(sz) * self.element_size();
  auto* im = self.unsafeGetTensorImpl();
  if ((int64_t)self.storage().nbytes() < need) {
    DG g(self.device().index());
    at::Tensor n = at::detail::empty_generic(sz, &g_alloc, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                             self.scalar_type(), std::nullopt);
    im->set_storage_keep_dtype(n.storage());
    im->set_storage_offset(0);
  }
  im->set_sizes_contiguous(sz);
  return self;
}
at::Tensor& set_src(at::Tensor& self, at::Storage s, c10::SymInt off, c10::SymIntArrayRef size,
                    c10::SymIntArrayRef st) {
  auto* im = self.unsafeGetTensorImpl();
  im->set_storage_keep_dtype(s);
  im->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(st), off.expect_int());
  return self;
}
at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& o) {
  auto* im = self.unsafeGetTensorImpl();
  im->set_storage_keep_dtype(o.storage());
  im->set_sizes_and_strides(o.sizes(), o.strides(), o.storage_offset());
  return self;
}
at::Tensor conv_fwd(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& b,
                    c10::SymIntArrayRef st, c10::SymIntArrayRef pad, c10::SymIntArrayRef dil, bool tr,
                    c10::SymIntArrayRef op, c10::SymInt g) {
  TORCH_CHECK(x.device() == w.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ", x.device(),
              " and ", w.device(), "! (op aten::convolution)");
  g_ops[x.device().index()]++;
  std::optional<at::Tensor> cb;
  if (b && b->defined()) cb = cpu_of(*b);
  return wrap(at::convolution_symint(cpu_of(x), cpu_of(w), cb, st, pad, dil, tr, op, g), x.device().index());
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> conv_bwd(const at::Tensor& go, const at::Tensor& x,
                                                        const at::Tensor& w, c10::SymIntArrayRef st,
                                                        c10::SymIntArrayRef pad, c10::SymIntArrayRef dil,
                                                        bool tr, c10::SymIntArrayRef op, c10::SymInt g,
                                                        std::array<bool, 3> mask) {
  int d = x.device().index();
  g_ops[d]++;
  std::vector<int64_t> bs{tr ? w.size(1) * g.expect_int() : w.size(0)};
  auto r = at::convolution_backward_symint(cpu_of(go), cpu_of(x), cpu_of(w),
                                           at::OptionalSymIntArrayRef(c10::fromIntArrayRefSlow(bs)), st, pad,
                                           dil, tr, op, g, mask);
  return {wrap(std::get<0>(r), d), wrap(std::get<1>(r), d), wrap(std::get<2>(r), d)};
}
using OT = std::optional<at::Tensor>;
at::Tensor addb(at::Tensor g, const OT& b) { return b && b->defined() ? g + cpu_of(*b) : g; }
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& ig, const at::Tensor& hg,
                                                         const at::Tensor& cx, const OT& ib, const OT& hb) {
  TORCH_CHECK(ig.device() == hg.device() && ig.device() == cx.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ", ig.device(),
              " and ", ig.device() == hg.device() ? cx.device() : hg.device(), "! (op lstm)");
  int d = ig.device().index();
  g_ops[d]++;
  auto c = addb(addb(cpu_of(ig) + cpu_of(hg), ib), hb).chunk(4, 1);
  auto i = c[0].sigmoid(), f = c[1].sigmoid(), g = c[2].tanh(), o = c[3].sigmoid();
  auto cy = f * cpu_of(cx) + i * g;
  auto hy = o * cy.tanh();
  return {wrap(hy, d), wrap(cy, d), wrap(at::cat({i, f, g, o}, 1), d)};
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_b(const OT& ghy, const OT& gcy, const at::Tensor& cx,
                                                           const at::Tensor& cy, const at::Tensor& ws,
                                                           bool has_bias) {
  if (!(ghy && ghy->defined()) && !(gcy && gcy->defined())) return {};
  int d = cx.device().index();
  g_ops[d]++;
  auto k = cpu_of(ws).chunk(4, 1);
  auto i = k[0], f = k[1], g = k[2], o = k[3];
  auto t = cpu_of(cy).tanh();
  auto gh = ghy && ghy->defined() ? cpu_of(*ghy) : at::zeros_like(t);
  auto gc = gcy && gcy->defined() ? cpu_of(*gcy) : at::zeros_like(t);
  auto dc = gh * o * (1 - t * t) + gc;
  auto gg = at::cat(
      {dc * g * i * (1 - i), dc * cpu_of(cx) * f * (1 - f), dc * i * (1 - g * g), gh * t * o * (1 - o)}, 1);
  return {wrap(gg, d), wrap(dc * f, d), has_bias ? wrap(gg.sum(0), d) : at::Tensor()};
}
std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& ig, const at::Tensor& hg, const at::Tensor& hx,
                                            const OT& ib, const OT& hb) {
  TORCH_CHECK(ig.device() == hg.device() && ig.device() == hx.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ", ig.device(),
              " and ", ig.device() == hg.device() ? hx.device() : hg.device(), "! (op gru)");
  int d = ig.device().index();
  g_ops[d]++;
  auto a = addb(cpu_of(ig), ib).chunk(3, 1), b = addb(cpu_of(hg), hb).chunk(3, 1);
  auto h = cpu_of(hx);
  auto r = (a[0] + b[0]).sigmoid(), i = (a[1] + b[1]).sigmoid(), n = (a[2] + r * b[2]).tanh();
  return {wrap(n + i * (h - n), d), wrap(at::cat({r, i, n, h, b[2]}, 1), d)};
}
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_b(const at::Tensor& ghy,
                                                                                  const at::Tensor& ws,
                                                                                  bool has_bias) {
  int d = ws.device().index();
  g_ops[d]++;
  auto k = cpu_of(ws).chunk(5, 1);
  auto r = k[0], i = k[1], n = k[2], h = k[3], hn = k[4];
  auto g = cpu_of(ghy);
  auto gi = g * (h - n) * (1 - i) * i, gn = g * (1 - i) * (1 - n * n), gr = gn * hn * (1 - r) * r;
  auto A = at::cat({gr, gi, gn}, 1), B = at::cat({gr, gi, gn * r}, 1);
  return {wrap(A, d), wrap(B, d), wrap(g * i, d), has_bias ? wrap(A.sum(0), d) : at::Tensor(),
          has_bias ? wrap(B.sum(0), d) : at::Tensor()};
}
at::Scalar lsd(const at::Tensor& self) { return cpu_of(self).item(); }
}  // namespace
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty_mf);
  m.impl("empty_strided", &empty_str);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_resize);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage_storage_offset", &set_src);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("_local_scalar_dense", &lsd);
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_b);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_b);
  m.impl("convolution_overrideable", &conv_fwd);
  m.impl("convolution_backward_overrideable", &conv_bwd);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  m.def("set_count", [](int n) {
    TORCH_CHECK(n <= MAXD);
    g_n = n;
  });
  m.def("count", [] { return g_n; });
  m.def("current", [] { return t_cur; });
  m.def("set_current", [](int d) { t_cur = d; });
  m.def("used", [](int d) { return (int64_t)g_used[d]; });
  m.def("peak", [](int d) { return (int64_t)g_peak[d]; });
  m.def("reset_peak", [](int d) { g_peak[d] = (int64_t)g_used[d]; });
  m.def("set_cap", [](int d, int64_t n) { g_cap[d] = n; });
  m.def("ops", [](int d) { return (int64_t)g_ops[d]; });
  m.def("copies", [] { return (int64_t)g_copies; });
  m.def("in_bytes", [](int d) { return (int64_t)g_in_bytes[d]; });
  m.def("reset_counts", [] {
    for (int i = 0; i < MAXD; ++i) {
      g_ops[i] = 0;
      g_in_bytes[i] = 0;
    }
    g_copies = 0;
  });
}
