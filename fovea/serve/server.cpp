// The one source of the program that includes Boost.Beast: connections as coroutines on one thread.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/serve/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <csignal>
#include <list>

#include "fovea/base/error.h"
#include "fovea/base/printable.h"
#include "fovea/serve/http_head.h"

namespace fovea::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::awaitable;
using asio::ip::tcp;
using std::chrono::steady_clock;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr size_t kReadBytes = 4096, kWriteBytes = 64 << 10;
constexpr std::chrono::milliseconds kPoll{20}, kAcceptAgain{100}, kLinger{2000}, kFirstBytes{1000},
    kLastWrites{5000};
constexpr size_t kLingerBytes = 8 << 20;

/// Wakes one coroutine of the server's thread.
struct Signal {
  explicit Signal(asio::io_context& io) : timer(io, steady_clock::time_point::max()) {}
  void set() {
    is_set = true;
    timer.cancel();
  }
  awaitable<void> wait() {
    if (!is_set) co_await timer.async_wait(kAwait);
    is_set = false;
  }

  asio::steady_timer timer;
  bool is_set = false;
};

struct Connection {
  explicit Connection(tcp::socket socket) : stream(std::move(socket)) {}

  beast::tcp_stream stream;
  beast::flat_buffer buffer;
  std::string peer;
  std::shared_ptr<Signal> signal = {};  ///< of the answer that is awaited
  bool idle = false;                    ///< between two requests
  bool served = false;                  ///< at least one

  void close() {
    boost::system::error_code ignored;
    stream.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream.socket().close(ignored);
  }
};

/// A request, and what its answer needs of it.
struct Received {
  HttpRequest request;
  unsigned version = 11;
  bool keep_alive = false;
  steady_clock::time_point start = steady_clock::now();
};

/// Notices that the client closed its connection while its answer is made: the read that races
/// against the stream.
class ClientWatch {
 public:
  ClientWatch(tcp::socket& socket, std::shared_ptr<Signal> signal)
      : state_(std::make_shared<State>()) {
    state_->socket = &socket;
    state_->signal = std::move(signal);
    const auto state = state_;
    const auto look = [state](const boost::system::error_code& error) {
      if (error || state->socket == nullptr) return;
      // More bytes may be the next request, which waits; none are the end.
      char byte = 0;
      boost::system::error_code failed;
      const size_t count =
          state->socket->receive(asio::buffer(&byte, 1), tcp::socket::message_peek, failed);
      if (!failed && count > 0) return;
      state->gone = true;
      state->signal->set();
    };
    socket.async_wait(tcp::socket::wait_read,
                      asio::bind_cancellation_slot(state_->cancel.slot(), look));
  }
  ~ClientWatch() {
    state_->socket = nullptr;
    state_->cancel.emit(asio::cancellation_type::all);
  }
  ClientWatch(const ClientWatch&) = delete;
  ClientWatch& operator=(const ClientWatch&) = delete;
  bool gone() const { return state_->gone; }

 private:
  struct State {
    tcp::socket* socket = nullptr;
    std::shared_ptr<Signal> signal = {};
    asio::cancellation_signal cancel = {};
    bool gone = false;
  };
  std::shared_ptr<State> state_;
};

/// Whether nobody waits for an answer, or the time is over: then the stream is closed already.
bool is_end(const boost::system::error_code& error) {
  return error == beast::error::timeout || error == http::error::end_of_stream ||
         error == asio::error::eof || error == asio::error::connection_reset ||
         error == asio::error::operation_aborted || error == http::error::partial_message ||
         error == asio::error::broken_pipe;
}

class Server {
 public:
  Server(Backend& backend, const ServerOptions& options)
      : io_(std::make_shared<asio::io_context>(1)),
        backend_(backend),
        options_(options),
        routes_(backend, options.routes),
        acceptor_(*io_),
        signals_(*io_, SIGINT, SIGTERM) {}

  int run() {
    listen();
    asio::co_spawn(*io_, accept_all(), asio::detached);
    asio::co_spawn(*io_, end_orderly(), asio::detached);
    options_.ready(address_);
    io_->run();
    worker_.join();
    return signal_;
  }

 private:
  void listen();
  awaitable<void> accept_all();
  void accept_waiting();
  void admit(tcp::socket socket);
  awaitable<void> end_orderly();
  template <class Which>
  void close_idle(const Which& which);

  awaitable<void> talk(std::shared_ptr<Connection> connection);
  awaitable<bool> wait_for_request(Connection& c);
  awaitable<bool> one_request(Connection& c);
  awaitable<bool> read_body(Connection& c, RequestParser& parser);
  awaitable<bool> answer(Connection& c, const Received& r);
  awaitable<bool> answer_exchange(Connection& c, const Received& r, Exchange& exchange,
                                  std::shared_ptr<Signal> signal);
  awaitable<bool> send(Connection& c, const Received& r, HttpResponse response);
  awaitable<bool> send_stream_head(Connection& c, const Received& r);
  awaitable<bool> send_text(Connection& c, const Received& r, std::string_view text);
  awaitable<bool> refuse_and_close(Connection& c, const Problem& problem);
  awaitable<void> linger(Connection& c);
  void count(const Connection& c, const Received& r, int status);

  std::shared_ptr<asio::io_context> io_;
  Backend& backend_;
  const ServerOptions& options_;
  Routes routes_;
  asio::thread_pool worker_{1};
  tcp::acceptor acceptor_;
  asio::signal_set signals_;
  std::string address_;
  std::list<std::shared_ptr<Connection>> connections_;  // the longest idle ones first
  HttpStatistics statistics_;
  int64_t requests_ = 0;    // being answered
  bool abandoned_ = false;  // nothing is answered any more
  int signal_ = 0;          // of the first SIGINT or SIGTERM
};

void Server::listen() {
  boost::system::error_code error;
  const std::string& host = options_.host == "localhost" ? "127.0.0.1" : options_.host;
  const asio::ip::address address = asio::ip::make_address(host, error);
  require<UsageError>(!error, "--host", "expected an address such as 127.0.0.1 or ::; got {}",
                      options_.host);
  const tcp::endpoint place(address, static_cast<uint16_t>(options_.port));
  acceptor_.open(place.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(place, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  require<IoError>(!error, "serve", "cannot listen on {} port {}: {}; choose another --port",
                   options_.host, options_.port, error.message());
  const std::string shown = address.is_v6() ? "[" + address.to_string() + "]" : address.to_string();
  address_ = fmt::format("http://{}:{}", shown, acceptor_.local_endpoint().port());
}

void Server::admit(tcp::socket socket) {
  boost::system::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  auto connection = std::make_shared<Connection>(std::move(socket));
  const tcp::endpoint peer = connection->stream.socket().remote_endpoint(ignored);
  connection->peer = peer.address().to_string();
  ++statistics_.accepted_connections;
  asio::co_spawn(*io_, talk(std::move(connection)), asio::detached);
}

awaitable<void> Server::accept_all() {
  while (acceptor_.is_open() && signal_ == 0) {
    if (std::ssize(connections_) >= options_.connections) {
      const auto [error] = co_await acceptor_.async_wait(tcp::acceptor::wait_read, kAwait);
      if (error) co_return;
      // Somebody waits: the longest idle connection makes room.
      const auto idle = std::ranges::find_if(connections_, [](const auto& c) { return c->idle; });
      if (idle != connections_.end()) (*idle)->stream.cancel();
      asio::steady_timer pause(*io_, kPoll);
      co_await pause.async_wait(kAwait);
      continue;
    }
    auto [error, socket] = co_await acceptor_.async_accept(kAwait);
    if (error == asio::error::operation_aborted) co_return;
    if (!error) {
      admit(std::move(socket));
      continue;
    }
    asio::steady_timer pause(*io_, kAcceptAgain);  // no descriptors are left
    co_await pause.async_wait(kAwait);
  }
}

// Connections that the system has taken for us already.
void Server::accept_waiting() {
  boost::system::error_code error;
  acceptor_.cancel(error);
  acceptor_.non_blocking(true, error);
  while (!error && std::ssize(connections_) < options_.connections) {
    tcp::socket socket(*io_);
    acceptor_.accept(socket, error);
    if (!error) admit(std::move(socket));
  }
  acceptor_.close(error);
}

awaitable<void> Server::end_orderly() {
  const auto [error, number] = co_await signals_.async_wait(kAwait);
  if (error) co_return;
  boost::system::error_code ignored;
  signals_.clear(ignored);  // the next one ends the process as usual
  signal_ = number;
  routes_.set_draining();
  backend_.drain();
  accept_waiting();
  options_.log(fmt::format("signal {}: {} requests finish, for at most {} s", number, requests_,
                           std::chrono::duration<double>(options_.shutdown_time).count()));
  const auto wait_until = [&](steady_clock::time_point end) -> awaitable<void> {
    while (!connections_.empty() && steady_clock::now() < end) {
      asio::steady_timer pause(*io_, kPoll);
      co_await pause.async_wait(kAwait);
    }
  };
  const auto end = steady_clock::now() + options_.shutdown_time;
  close_idle([](const Connection& c) { return c.idle && c.served; });
  co_await wait_until(std::min(end, steady_clock::now() + kFirstBytes));
  close_idle([](const Connection& c) { return c.idle; });
  co_await wait_until(end);
  backend_.stop();
  co_await wait_until(steady_clock::now() + kLastWrites);
  abandoned_ = true;
  for (const auto& connection : connections_) {
    connection->close();
    if (connection->signal) connection->signal->set();
  }
  co_await wait_until(steady_clock::now() + kLastWrites);
  if (!connections_.empty()) io_->stop();
}

template <class Which>
void Server::close_idle(const Which& which) {
  for (const auto& connection : connections_)
    if (which(*connection)) connection->stream.cancel();
}

awaitable<void> Server::talk(std::shared_ptr<Connection> connection) {
  const auto place = connections_.insert(connections_.end(), connection);
  statistics_.connections = std::ssize(connections_);
  Connection& c = *connection;
  try {
    for (bool more = true; more;) {
      // Behind those that have been idle for longer.
      connections_.splice(connections_.end(), connections_, place);
      more = co_await wait_for_request(c);
      if (more) more = co_await one_request(c);
    }
  } catch (const std::exception& error) {
    options_.log(fmt::format("a connection failed: {}", error.what()));
  }
  c.close();
  connections_.erase(place);
  statistics_.connections = std::ssize(connections_);
}

awaitable<bool> Server::wait_for_request(Connection& c) {
  if (c.buffer.size() > 0) co_return true;
  c.buffer.shrink_to_fit();  // an idle connection costs little
  c.idle = true;
  c.stream.expires_after(options_.idle_time);
  const auto space = c.buffer.prepare(kReadBytes);
  const auto [error, bytes] = co_await c.stream.async_read_some(space, kAwait);
  c.idle = false;
  if (error) co_return false;
  c.buffer.commit(bytes);
  co_return true;
}

awaitable<bool> Server::one_request(Connection& c) {
  Received r;
  RequestParser parser;
  parser.header_limit(static_cast<uint32_t>(options_.header_bytes));
  parser.body_limit(static_cast<uint64_t>(options_.body_bytes));
  c.stream.expires_after(options_.header_time);
  const auto [error, bytes] = co_await http::async_read_header(c.stream, c.buffer, parser, kAwait);
  if (error) {
    if (is_end(error)) co_return false;
    co_return co_await refuse_and_close(c, problem_of_reading(error));
  }
  r.request = head_of(parser);
  r.version = parser.get().version();
  r.keep_alive = parser.keep_alive() && signal_ == 0;
  if (auto refusal = routes_.refuse_head(r.request)) {
    // A body that nobody reads must not look like the next request.
    r.keep_alive = r.keep_alive && parser.is_done();
    const int status = refusal->status;
    const bool sent = co_await send(c, r, *std::move(refusal));
    count(c, r, status);
    if (sent && !parser.is_done()) co_await linger(c);
    co_return (sent && r.keep_alive);
  }
  const bool whole = co_await read_body(c, parser);
  if (!whole) co_return false;
  r.request.body = std::move(parser.get().body());
  ++requests_;
  const bool more = co_await answer(c, r);
  --requests_;
  c.served = true;
  co_return more;
}

awaitable<bool> Server::read_body(Connection& c, RequestParser& parser) {
  if (parser.is_done()) co_return true;
  c.stream.expires_after(options_.body_time);
  if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    const auto bytes = asio::buffer(kContinue);
    const auto [failed, sent] = co_await asio::async_write(c.stream, bytes, kAwait);
    if (failed) co_return false;
  }
  const auto [error, bytes] = co_await http::async_read(c.stream, c.buffer, parser, kAwait);
  if (!error) co_return true;
  if (is_end(error)) co_return false;
  co_return co_await refuse_and_close(c, problem_of_reading(error));
}

awaitable<bool> Server::answer(Connection& c, const Received& r) {
  auto signal = c.signal = std::make_shared<Signal>(*io_);
  const Wake wake = [io = io_, signal] { asio::post(*io, [signal] { signal->set(); }); };
  Routes::Answer found;
  if (routes_.is_quick(r.request)) {
    found = routes_.answer(r.request, statistics_, wake);
  } else {
    const auto on_worker = [&]() -> awaitable<void> {
      found = routes_.answer(r.request, {}, wake);
      co_return;
    };
    co_await asio::co_spawn(worker_, on_worker, asio::use_awaitable);
  }
  if (auto* exchange = std::get_if<std::unique_ptr<Exchange>>(&found))
    co_return co_await answer_exchange(c, r, **exchange, signal);
  HttpResponse response = std::get<HttpResponse>(std::move(found));
  const int status = response.status;
  const bool sent = co_await send(c, r, std::move(response));
  count(c, r, status);
  co_return (sent && r.keep_alive);
}

awaitable<bool> Server::answer_exchange(Connection& c, const Received& r, Exchange& exchange,
                                        std::shared_ptr<Signal> signal) {
  constexpr int kClientGone = 499;  // nginx's word in logs; nobody receives it
  const ClientWatch watch(c.stream.socket(), signal);
  bool begun = false, sent = true;
  std::optional<Problem> problem;
  while (sent && !watch.gone() && !problem && !abandoned_) {
    try {
      exchange.collect();
    } catch (const std::exception& error) {
      problem = routes_.report(r.request, error);
    }
    if (exchange.streams()) {
      std::string text = exchange.take_text();
      if (problem && begun) text += error_event_text(*problem);
      if (!text.empty() && !begun && !problem) begun = sent = co_await send_stream_head(c, r);
      if (sent && begun && !text.empty()) sent = co_await send_text(c, r, text);
    }
    if (exchange.finished()) break;
    if (!problem && sent) co_await signal->wait();
  }
  if (!sent || abandoned_ || (watch.gone() && !exchange.finished())) {
    exchange.cancel();
    count(c, r, kClientGone);
    co_return false;
  }
  if (begun) {
    if (r.version >= 11) {
      c.stream.expires_after(options_.write_time);
      const auto end = http::make_chunk_last();
      const auto [error, bytes] = co_await asio::async_write(c.stream, end, kAwait);
      sent = !error;
    }
    count(c, r, problem ? problem->status : 200);
    co_return sent && !problem && r.keep_alive && r.version >= 11;
  }
  HttpResponse response = problem ? problem_response(*problem) : exchange.response();
  const int status = response.status;
  sent = co_await send(c, r, std::move(response));
  count(c, r, status);
  co_return (sent && r.keep_alive);
}

awaitable<bool> Server::send(Connection& c, const Received& r, HttpResponse response) {
  http::response<http::string_body> message(static_cast<http::status>(response.status), r.version);
  for (const auto& [name, value] : routes_.headers_for(r.request)) message.set(name, value);
  for (const auto& [name, value] : response.headers) message.set(name, value);
  if (!response.content_type.empty()) message.set(http::field::content_type, response.content_type);
  message.keep_alive(r.keep_alive);
  message.body() = std::move(response.body);
  message.prepare_payload();
  http::response_serializer<http::string_body> serializer(message);
  if (r.request.method == "HEAD") {
    c.stream.expires_after(options_.write_time);
    const auto [error, bytes] = co_await http::async_write_header(c.stream, serializer, kAwait);
    co_return !error;
  }
  while (!serializer.is_done()) {
    c.stream.expires_after(options_.write_time);
    const auto [error, bytes] = co_await http::async_write_some(c.stream, serializer, kAwait);
    if (error) co_return false;
  }
  co_return true;
}

awaitable<bool> Server::send_stream_head(Connection& c, const Received& r) {
  http::response<http::empty_body> message(http::status::ok, r.version);
  for (const auto& [name, value] : routes_.headers_for(r.request)) message.set(name, value);
  message.set(http::field::content_type, "text/event-stream; charset=utf-8");
  message.set("X-Accel-Buffering", "no");  // a proxy passes events on at once
  message.keep_alive(r.keep_alive && r.version >= 11);
  if (r.version >= 11) message.chunked(true);
  http::response_serializer<http::empty_body> serializer(message);
  c.stream.expires_after(options_.write_time);
  const auto [error, bytes] = co_await http::async_write_header(c.stream, serializer, kAwait);
  co_return !error;
}

// In parts, so that a slow client has the whole time for each of them.
awaitable<bool> Server::send_text(Connection& c, const Received& r, std::string_view text) {
  for (; !text.empty(); text.remove_prefix(std::min(text.size(), kWriteBytes))) {
    const auto part = asio::buffer(text.data(), std::min(text.size(), kWriteBytes));
    c.stream.expires_after(options_.write_time);
    boost::system::error_code error;
    if (r.version >= 11) {
      const auto chunk = http::make_chunk(part);
      auto [failed, bytes] = co_await asio::async_write(c.stream, chunk, kAwait);
      error = failed;
    } else {
      auto [failed, bytes] = co_await asio::async_write(c.stream, part, kAwait);
      error = failed;
    }
    if (error) co_return false;
  }
  co_return true;
}

awaitable<bool> Server::refuse_and_close(Connection& c, const Problem& problem) {
  const Received nobody;
  co_await send(c, nobody, problem_response(problem));
  count(c, nobody, problem.status);
  co_await linger(c);
  co_return false;
}

// Before closing, reads and drops what still arrives: closing at once would take the answer away
// from a client that is still sending.
awaitable<void> Server::linger(Connection& c) {
  boost::system::error_code error;
  c.stream.socket().shutdown(tcp::socket::shutdown_send, error);
  c.stream.expires_after(kLinger);
  for (size_t dropped = 0; !error && dropped < kLingerBytes;) {
    c.buffer.clear();
    const auto space = c.buffer.prepare(kWriteBytes);
    const auto [failed, bytes] = co_await c.stream.async_read_some(space, kAwait);
    error = failed;
    dropped += bytes;
  }
}

void Server::count(const Connection& c, const Received& r, int status) {
  ++statistics_.responses[{routes_.name_of(r.request), status}];
  constexpr size_t kShownTarget = 100;
  const double seconds = std::chrono::duration<double>(steady_clock::now() - r.start).count();
  options_.log(fmt::format("{} {} {} {} {:.3f} s", c.peer,
                           r.request.method.empty() ? "-" : printable_line(r.request.method),
                           printable_line(r.request.path().substr(0, kShownTarget)), status,
                           seconds));
}

/// As many descriptors as connections need, if the system lets us.
void allow_descriptors(int64_t connections) {
  constexpr rlim_t kOthers = 128;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = static_cast<rlim_t>(connections) + kOthers;
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(limit.rlim_max, wanted);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int run_server(Backend& backend, const ServerOptions& options) {
  allow_descriptors(options.connections);
  ServerOptions resolved = options;
  boost::system::error_code error;
  const std::string host = options.host == "localhost" ? "127.0.0.1" : options.host;
  const asio::ip::address address = asio::ip::make_address(host, error);
  resolved.routes.local = !error && address.is_loopback();
  Server server(backend, resolved);
  return server.run();
}

}  // namespace fovea::serve
