"""The software GPU: PTX compiled to the host, run by the C scheduler beside this file."""
