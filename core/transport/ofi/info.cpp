#include "transport/ofi/info.hpp"

#ifdef WEFT_HAVE_OFI
#include <rdma/fi_atomic.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "base/error.hpp"
#include "transport/ofi/traffic_class.hpp"

namespace weft::transport {

namespace {

constexpr std::array kTypes{FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM};

// What we can live with; a provider takes from it what it needs.
constexpr uint64_t kModes = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
constexpr int kMemoryModes =
    FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;

// Most operations first.
constexpr std::array<uint64_t, 6> kCapabilities{FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC,
                                                FI_MSG | FI_RMA | FI_ATOMIC,
                                                FI_MSG | FI_TAGGED | FI_RMA,
                                                FI_MSG | FI_RMA,
                                                FI_MSG | FI_TAGGED,
                                                FI_MSG};

char* copy_of(const std::string& text) {
  return strdup(text.c_str());
}

InfoPtr new_hints(const std::string& provider, const std::string& domain, fi_ep_type type) {
  InfoPtr hints(OfiLibrary::get().dupinfo(nullptr));
  if (!hints) throw Error("ofi", "no memory for fi_info");
  hints->ep_attr->type = type;
  hints->mode = kModes;
  hints->domain_attr->mr_mode = kMemoryModes;
  // Freed with the hints.
  if (!provider.empty()) hints->fabric_attr->prov_name = copy_of(provider);
  if (!domain.empty()) hints->domain_attr->name = copy_of(domain);
  return hints;
}

InfoPtr query(const fi_info* hints, const std::string& address = "") {
  const OfiLibrary& library = OfiLibrary::get();
  fi_info* info = nullptr;
  const char* node = address.empty() ? nullptr : address.c_str();
  const int rc = library.getinfo(library.api, node, nullptr, node ? FI_SOURCE : 0, hints, &info);
  return InfoPtr(rc == 0 ? info : nullptr);
}

struct Device {
  std::string provider, domain;
};

// "verbs/mlx5_0": provider and domain, as libfabric names them.
Device split(const std::string& device) {
  const size_t slash = device.find('/');
  if (slash == std::string::npos) return {device, ""};
  return {device.substr(0, slash), device.substr(slash + 1)};
}

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void set_runtime(const Config& config, fi_info& hints) {
  hints.domain_attr->threading = FI_THREAD_DOMAIN;
  hints.domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints.domain_attr->data_progress = FI_PROGRESS_MANUAL;
  if (config.delivery) hints.tx_attr->op_flags = FI_DELIVERY_COMPLETE;
  hints.tx_attr->tclass = wanted_class(config);
}

std::vector<fi_ep_type> types_of(const Config& config) {
  if (config.endpoint.empty()) return {kTypes.begin(), kTypes.end()};
  for (fi_ep_type type : kTypes)
    if (config.endpoint == endpoint_name(type)) return {type};
  throw Error(where(config), "endpoint '" + config.endpoint + "' is unknown",
              "use rdm, msg or dgram");
}

InfoPtr query(const Config& config, fi_ep_type type, uint64_t capabilities) {
  const Device device = split(config.device);
  InfoPtr hints = new_hints(device.provider, device.domain, type);
  hints->caps = capabilities;
  if (config.memory != "host") {
    hints->caps |= FI_HMEM;
    hints->domain_attr->mr_mode |= FI_MR_HMEM;
  }
  set_runtime(config, *hints);
  return query(hints.get(), config.address);
}

// FI_DELIVERY_COMPLETE is accepted by ofi_rxm (1.17, 2.5), which then completes messages of up to
// 16 KiB before the peer has them; tests/unit/test_ofi_endpoint.py holds the others to it.
bool keeps_promise(const Config& config, const fi_info& info) {
  return !config.delivery || !std::strstr(info.fabric_attr->prov_name, "ofi_rxm");
}

// The first offer of the list that is this very provider's: "tcp" also gets "tcp;ofi_rxm".
InfoPtr first_of(const InfoPtr& list, const std::string& provider) {
  for (const fi_info* info = list.get(); info; info = info->next)
    if (provider == info->fabric_attr->prov_name) return InfoPtr(OfiLibrary::get().dupinfo(info));
  return nullptr;
}

// The provider that libfabric would take for messages alone, with as much else as it has: asking
// for everything at once could get a slower, layered one.
InfoPtr find(const Config& config, const std::vector<fi_ep_type>& types) {
  for (fi_ep_type type : types) {
    const InfoPtr plain = query(config, type, FI_MSG);
    if (!plain || !keeps_promise(config, *plain)) continue;
    for (uint64_t capabilities : kCapabilities)
      if (InfoPtr best = first_of(query(config, type, capabilities), plain->fabric_attr->prov_name))
        return best;
  }
  return nullptr;
}

// Why find() found nothing: the first of the wishes without which there would be something.
[[noreturn]] void explain(const Config& config, const std::vector<fi_ep_type>& types) {
  const Device device = split(config.device);
  const auto known = known_providers();
  InfoPtr any = offers(device.provider, FI_EP_UNSPEC);
  if (!any) {
    const std::string core = device.provider.substr(0, device.provider.find(';'));
    if (std::ranges::find(known, core) != known.end())
      throw Error(where(config), "libfabric knows this provider but finds no device for it",
                  "run weft doctor to see what there is, or use another provider");
    throw Error(where(config), "libfabric has no provider '" + device.provider + "'",
                "use one of: " + list(known));
  }
  Config wish = config;
  wish.memory = "host";
  if (config.memory != "host" && find(wish, types))
    throw Error(where(config), "the provider reaches the host's memory alone (no FI_HMEM)");
  if (config.delivery) {
    wish.delivery = false;
    if (find(wish, types))
      throw Error(where(config),
                  "the provider has no completion that means delivery "
                  "(FI_DELIVERY_COMPLETE), on the endpoints asked for",
                  "use another provider (shm, net, sockets) or endpoint, or a test that does not "
                  "need it");
  }
  wish.address.clear();
  if (find(wish, types))
    throw Error(where(config), "cannot use the local address '" + config.address + "'",
                "give an address of this host's own that the provider can bind");
  wish.device = device.provider;
  if (find(wish, types))
    throw Error(where(config), "the provider has no domain '" + device.domain + "'",
                "see the domains in weft doctor, or leave it out");
  std::vector<std::string> offered;
  for (fi_ep_type type : kTypes)
    if (offers(device.provider, type)) offered.emplace_back(endpoint_name(type));
  throw Error(where(config), "the provider has no " + config.endpoint + " endpoint",
              "use --endpoint " + list(offered));
}

}  // namespace

const char* endpoint_name(fi_ep_type type) {
  if (type == FI_EP_RDM) return "rdm";
  if (type == FI_EP_MSG) return "msg";
  return type == FI_EP_DGRAM ? "dgram" : "other";
}

std::string where(const Config& config) {
  return config.device.empty() ? "ofi" : "ofi:" + config.device;
}

InfoPtr offers(const std::string& provider, fi_ep_type type) {
  return query(new_hints(provider, "", type).get());
}

std::vector<std::string> known_providers() {
  const OfiLibrary& library = OfiLibrary::get();
  fi_info* providers = nullptr;
  if (library.getinfo(library.api, nullptr, nullptr, FI_PROV_ATTR_ONLY, nullptr, &providers) != 0)
    return {};
  const InfoPtr all(providers);
  std::vector<std::string> names;
  for (const fi_info* info = all.get(); info; info = info->next) {
    const std::string name = info->fabric_attr->prov_name;
    // Hooks wrap providers; utility providers (ofi_rxm) are used through a core one.
    if (name.starts_with("ofi_") || name.starts_with("off_")) continue;
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

std::string verified(const std::string& provider) {
  constexpr std::array kTested{"shm", "tcp", "udp", "sockets", "net", "verbs"};
  const std::string core = provider.substr(0, provider.find(';'));
  return std::ranges::find(kTested, core) != kTested.end()
             ? "yes"
             : "unverified: weft has never run over this provider";
}

long open_fabric(const fi_info& info, Fid<fid_fabric>& fabric) {
  return open_into(fabric, [&](fid_fabric** object) {
    return OfiLibrary::get().fabric(info.fabric_attr, object, nullptr);
  });
}

long open_domain(fi_info& info, const Fid<fid_fabric>& fabric, Fid<fid_domain>& domain) {
  return open_into(
      domain, [&](fid_domain** object) { return fi_domain(fabric.get(), &info, object, nullptr); });
}

std::vector<Op> operations_of(const fi_info& info, fid_domain* domain) {
  std::vector<Op> ops;
  if (info.caps & FI_MSG) ops.push_back(Op::send);
  if (info.caps & FI_TAGGED) ops.push_back(Op::tagged);
  if (info.caps & FI_MSG && info.tx_attr->inject_size > 0) ops.push_back(Op::inject);
  if (info.caps & FI_RMA) {
    ops.push_back(Op::write);
    if (info.domain_attr->cq_data_size >= sizeof(uint32_t)) ops.push_back(Op::write_imm);
    ops.push_back(Op::read);
  }
  fi_atomic_attr attr{};
  // libfabric's verbs provider adds and swaps the operand's address in place of its value: seen on
  // 1.17, and so in its source for as long as it has had atomics.
  const bool takes_addresses = std::strcmp(info.fabric_attr->prov_name, "verbs") == 0;
  if (!(info.caps & FI_ATOMIC) || takes_addresses) return ops;
  if (fi_query_atomic(domain, FI_UINT64, FI_SUM, &attr, FI_FETCH_ATOMIC) == 0)
    ops.push_back(Op::fetch_add);
  if (fi_query_atomic(domain, FI_UINT64, FI_CSWAP, &attr, FI_COMPARE_ATOMIC) == 0)
    ops.push_back(Op::compare_swap);
  return ops;
}

InfoPtr choose(const Config& config) {
  const auto types = types_of(config);
  // In libfabric 1.17 the tcp provider of later versions, which delivers by itself, is called net.
  if (config.delivery && config.device == "tcp" && types.front() == FI_EP_RDM &&
      !find(config, {FI_EP_RDM})) {
    Config other = config;
    other.device = "net";
    if (InfoPtr info = find(other, {FI_EP_RDM})) return info;
  }
  if (InfoPtr info = find(config, types)) return info;
  if (config.class_is_optional && config.traffic_class != 0) {
    Config unmarked = config;
    unmarked.traffic_class = 0;
    return choose(unmarked);
  }
  explain(config, types);
}

}  // namespace weft::transport
#endif
