"""Memory for attention: integers and tensors that know no models, requests or HTTP."""
